"""The protocol between nodes, without I/O: it takes bytes and returns events."""
