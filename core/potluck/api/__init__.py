"""The HTTP API of a node."""
