"""Start, supervise and use the stage processes of this computer, without importing torch."""
