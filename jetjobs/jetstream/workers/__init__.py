"""The registry of workers, requests to them and the events they publish."""
