"""What a model is: its configuration, manifest, tokenizer and chat template. Pure."""
