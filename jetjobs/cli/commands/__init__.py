"""The commands, one module per group, imported when the group is called."""
