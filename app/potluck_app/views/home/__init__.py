"""The Cluster page: computers, layers, and who could join."""
