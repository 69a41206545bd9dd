"""The connection to NATS: requests, API subjects, errors and the server's clock."""
