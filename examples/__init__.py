"""Examples that run: each is used by the demo, by the tests or by docker-compose."""
