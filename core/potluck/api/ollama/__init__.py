"""Ollama's API, for programs that know that one alone."""
