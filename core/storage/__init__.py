"""The database adapter of the stores in core.ports."""
