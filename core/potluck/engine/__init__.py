"""Computing: torch, and no network."""
