"""Anthropic's Messages API: requests and answers of its clients, such as Claude Code."""
