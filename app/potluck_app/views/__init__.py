"""The widgets. They show what the view models hold, and pass on what the person does."""
