"""What a terminal and a person's editor are on each system."""

import shlex
import sys
from collections.abc import Mapping


def shows_styles(environ: Mapping[str, str], *, system: str = sys.platform) -> bool:
    """Whether a terminal shows colours, and the person wants them (no-color.org).

    Args:
        environ: its variables.
        system: as in `sys.platform`. An old console of Windows would print the escape sequences.
    """
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return system != "win32" or "WT_SESSION" in environ or "TERM" in environ


def editor(environ: Mapping[str, str], *, system: str = sys.platform) -> list[str]:
    """The words that start the person's editor of texts; a file's name follows.

    Args:
        environ: the variables, of which `VISUAL` and `EDITOR` name one.
        system: as in `sys.platform`. Paths of Windows have backslashes, which are no escapes there.

    Raises:
        ValueError: a quotation mark is lacking in the variable.
    """
    is_windows = system == "win32"
    named = (environ.get("VISUAL") or environ.get("EDITOR") or "").strip()
    if not named:
        return ["notepad" if is_windows else "vi"]
    words = shlex.split(named, posix=not is_windows)
    return [word.strip('"') for word in words] if is_windows else words


def has_screen(environ: Mapping[str, str], *, system: str = sys.platform) -> bool:
    """Whether a window can be opened.

    Args:
        environ: the variables.
        system: as in `sys.platform`. On Linux a variable names the screen; others always have one, or their windows say so.
    """
    if not system.startswith("linux") or environ.get("QT_QPA_PLATFORM"):
        return True
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))
