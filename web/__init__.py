"""Tidegate's HTTP face: the API, the dashboard and the command line."""
