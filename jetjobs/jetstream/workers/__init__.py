"""The registry of workers and the requests sent to them."""
