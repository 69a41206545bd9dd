"""The built-in task that delivers webhooks. It needs the extra `http`."""
