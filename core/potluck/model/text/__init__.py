"""Text to token ids and back: tokenizers, chat templates, and where answers end."""
