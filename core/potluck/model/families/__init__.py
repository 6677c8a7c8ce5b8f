"""The families of models: the facts in which they differ, and their table."""
