"""Who computes what: pure functions over frozen values."""
