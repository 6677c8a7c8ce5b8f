"""Sums over the ranks of a group that computes its layers together."""
