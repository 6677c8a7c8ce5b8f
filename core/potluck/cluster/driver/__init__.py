"""From messages to tokens: a conversation, and the pipeline of stages under it."""
