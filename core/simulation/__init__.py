"""A model of a continuous-batching model server, arrival processes and virtual time."""
