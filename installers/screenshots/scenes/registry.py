"""The list of scenes, by the name of their picture."""

from collections.abc import Callable
from typing import TypeAlias

from PySide6.QtWidgets import QWidget
from screenshots.stage import Stage

Scene: TypeAlias = Callable[[Stage], QWidget]
SCENES: dict[str, Scene] = {}


def scene(make: Scene) -> Scene:
    """Add a scene to the list."""
    SCENES[make.__name__.replace("_", "-")] = make
    return make
