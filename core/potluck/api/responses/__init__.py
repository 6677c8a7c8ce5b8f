"""OpenAI's Responses API: requests and answers of its newer clients, such as Codex."""
