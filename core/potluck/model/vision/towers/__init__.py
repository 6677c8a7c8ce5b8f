"""Vision towers by their makers: the facts of each, and where its config has the sizes."""
