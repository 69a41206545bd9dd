"""What each call of the HTTP API does: operations of the app, and their answers."""
