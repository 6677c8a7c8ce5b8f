"""The choices that the person made in the window, kept between starts. Without Qt."""

import logging
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from potluck.files import write_atomically

logger = logging.getLogger(__name__)


class Preferences(Struct, frozen=True, kw_only=True):
    """The choices. `mode` is None until the person has chosen what this computer should do."""

    mode: Literal["master", "worker"] | None = None
    theme: Literal["auto", "light", "dark"] = "auto"
    width: int = 1180
    height: int = 760


class PreferencesFile:
    """The file of the preferences, and its current values."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.current = _read(path)

    def change(self, **changes: object) -> None:
        """Change preferences and store them. On a full disk, they last until the program ends."""
        changed = msgspec.structs.replace(self.current, **changes)
        if changed == self.current:
            return
        self.current = changed
        try:
            write_atomically(self._path, msgspec.json.format(msgspec.json.encode(changed)))
        except OSError as error:
            logger.warning("the preferences could not be written: %s", error)


def _read(path: Path) -> Preferences:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Preferences)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError) as error:
        logger.warning("the preferences could not be read: %s", error)
    return Preferences()
