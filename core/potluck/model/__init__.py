"""What a model is: its configuration, its manifest, its words. Pure."""
