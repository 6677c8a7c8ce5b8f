"""A model's tokenizer and chat template, which strangers wrote, in a process with limits."""
