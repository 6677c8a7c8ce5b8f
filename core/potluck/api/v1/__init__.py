"""OpenAI's `/v1`: requests, answers, models."""
