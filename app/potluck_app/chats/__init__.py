"""Conversations: their values, and how they are kept on disk. Without Qt."""
