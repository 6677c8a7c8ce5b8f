"""Native packages: one tree for all systems, and what each system wraps it in."""
