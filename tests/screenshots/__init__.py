"""Images of the command line for the documentation, taken from a real server: `make screenshots`."""
