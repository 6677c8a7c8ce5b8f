"""The protocol between nodes, without I/O: bytes in, events out."""
