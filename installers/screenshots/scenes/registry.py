"""The scenes that were found, by the name of their picture."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from PySide6.QtWidgets import QWidget
from screenshots.stage import Stage

Make: TypeAlias = Callable[[Stage], QWidget]


class Scene(NamedTuple):
    """One picture: how it is set up, and what it shows, in one sentence for people."""

    make: Make
    says: str


FOUND: dict[str, Scene] = {}


def scene(make: Make) -> Make:
    """Add a scene to the list. Its docstring is one sentence: what a person sees there."""
    says = " ".join((make.__doc__ or "").split())
    if not says.endswith("."):
        raise ValueError(f"the scene {make.__name__} says in no sentence what it shows")
    FOUND[make.__name__.replace("_", "-")] = Scene(make, says)
    return make
