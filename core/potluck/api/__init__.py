"""The HTTP faces of a node."""
