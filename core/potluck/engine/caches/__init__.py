"""What is kept of a session: in memory, on the disk, and on its way to another stage."""
