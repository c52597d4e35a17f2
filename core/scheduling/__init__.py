"""The data plane: which request may use a slot now."""
