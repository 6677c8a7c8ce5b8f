"""The planner: which devices compute which layers. Pure functions over frozen values."""
