"""The engine of this computer: fetched with the help of the home, unpacked, and given to the stage processes."""
