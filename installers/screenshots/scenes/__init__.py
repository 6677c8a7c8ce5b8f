"""Every screen and state, each one function: a new scene is a function with `@scene`.

A scene gets a `Stage`, shows what it needs there, and returns the window, dialog or menu of the
picture. The name of the function is the name of the picture: screen first, then state. Its docstring is
one sentence about what is seen there, for `--list` and the user guide.
"""

from screenshots.scenes import answers, chats, cluster, first, models, settings, updates, worker
from screenshots.scenes.registry import FOUND

__all__ = ["SCENES"]

_ORDER = (first, chats, answers, cluster, models, settings, updates, worker)
SCENES = {
    name: scene
    for module in _ORDER
    for name, scene in FOUND.items()
    if scene.make.__module__ == module.__name__
}
"""By the name of their picture, in the order in which a person meets them."""
