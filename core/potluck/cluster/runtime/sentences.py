"""What the state of the engine says."""

from collections.abc import Mapping
from typing import Final

from potluck.api.values.engine import Phase

MISSING: Final = (
    "The engine (PyTorch) is not installed on this computer, so it computes nothing yet. Install it in the window or"
    " with: potluck engine install."
)
UNEXPECTED: Final = (
    "The engine cannot be installed: an error that Potluck does not know. The log has it (potluck logs). Try again; if"
    " it happens again, tell the makers of Potluck."
)
TOO_MANY: Final = (
    "Files of the engine are being fetched for other computers. Try again when they are there."
)
NEWER: Final = "The engine is installed. This release lists another one: potluck engine install."
BUSY: Final = "The engine is being installed. Stop that first: potluck engine stop."
NOT_FETCHED: Final = (
    "Potluck cannot fetch this engine again: this release does not list it. It stays as it is."
)
LATER: Final = "The engine is installed. It is used when Potluck is started the next time."
SAYS: Final[Mapping[Phase, str]] = {
    "own": "PyTorch is installed in Potluck's own Python.",
    "ready": "The engine is installed.",
    "missing": MISSING,
    "fetching": "The engine is being fetched.",
    "unpacking": "The engine is being unpacked and tried.",
}
