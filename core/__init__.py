"""Everything of Tidegate that survives without HTTP."""
