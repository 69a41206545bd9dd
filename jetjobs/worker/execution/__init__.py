"""One attempt from delivery to settlement."""
