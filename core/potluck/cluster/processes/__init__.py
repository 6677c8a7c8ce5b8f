"""Starting, watching and asking the stage processes of this computer; knows no torch."""
