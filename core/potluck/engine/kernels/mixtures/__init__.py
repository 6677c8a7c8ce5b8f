"""Mixtures of experts: the choice, and the experts of many tokens."""
