"""From lanes to slots: which jobs a worker pulls, and when they start."""
