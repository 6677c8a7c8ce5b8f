"""The choices that the person made in the window, kept between starts. Without Qt."""

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from potluck.files import recall, remember


class Place(Struct, frozen=True, kw_only=True):
    """What a window shows that opens in the place of another one."""

    page: str = ""  # its name in the rail
    chat: str = ""  # its id; "": a new one


class Preferences(Struct, frozen=True, kw_only=True):
    """The choices. `mode` is None until the person has chosen what this computer should do."""

    mode: Literal["master", "worker"] | None = None
    theme: Literal["auto", "light", "dark"] = "auto"
    language: str = "auto"  # or a code, such as "de"
    text_size: int = 14  # pixels of running text
    enter_sends: bool = True  # else it begins a new line, and Ctrl+Enter sends
    closing: Literal["needed", "tray", "quit"] = "needed"  # what goes on when the window is closed
    advanced: bool = False  # whether the options of a chat are all shown
    width: int = 1180
    height: int = 760
    told_update: str = ""  # the newer version of Potluck of which the tray has told
    read_update: str = ""  # and the one of which the person has read in the window
    back_to: Place | None = None  # what the next window begins with; None: a new chat


class PreferencesFile:
    """The file of the preferences, and its current values."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.current = recall(path, Preferences) or Preferences()

    def change(self, **changes: object) -> None:
        """Change preferences and store them. On a full disk, they last until the program ends."""
        changed = msgspec.structs.replace(self.current, **changes)
        if changed != self.current:
            self.current = changed
            remember(self._path, changed)
