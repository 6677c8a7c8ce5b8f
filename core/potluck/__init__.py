"""Potluck: the computers of one home, pooled to run a language model."""

__version__ = "0.1.0"
