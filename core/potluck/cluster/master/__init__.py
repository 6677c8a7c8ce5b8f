"""The master: measures the computers, plans which one computes which layers, and loads the plan."""
