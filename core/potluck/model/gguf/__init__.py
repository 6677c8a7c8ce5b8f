"""What a GGUF file says of its model, in the form of Hugging Face."""
