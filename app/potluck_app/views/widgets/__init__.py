"""What every page is made of: controls, dialogs, texts."""
