"""The control plane: how much of a pool batch may hold, and why."""
