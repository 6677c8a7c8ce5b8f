"""The configs of well-known models: their speed can be measured without their weights."""
