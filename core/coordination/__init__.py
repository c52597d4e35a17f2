"""Adapters that let parts of one process (later: several) agree."""
