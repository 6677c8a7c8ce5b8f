"""What the state of an update says."""

from collections.abc import Mapping
from typing import Final

from potluck import __version__
from potluck.api.values.update import Phase
from potluck.update.versions import Failed

SAYS: Final[Mapping[Phase, str]] = {
    "quiet": "No newer version of Potluck is known.",
    "looking": "Potluck looks for a newer version.",
    "offered": "There is a newer version of Potluck.",
    "fetching": "The new version is being fetched.",
    "trying": "The new version is being unpacked and tried.",
    "waiting": "The new version is ready. Potluck switches to it as soon as nothing is answered.",
    "switching": "Potluck starts again with the new version.",
}
NEWEST: Final = "This is the newest version of Potluck."
NO_LIST: Final = (
    "For a long time no list of releases has come here: the last one was good until {}. There may be newer versions."
    " Connect this computer to the Internet, or try another network."
)
NO_PACKAGE: Final = "The newest release of Potluck has no package for this computer. The version that is here is used on."
UNEXPECTED: Final = "Potluck cannot be updated: an error that it does not know. The log has it (potluck logs). What is here is used on."
HEARD: Final = "It asks its owner."
FOLLOWS: Final = "It updates, too."
BY_HAND: Final = "Its owner has to update it."


def taken_back(newest: str, before: str) -> str:
    """What there is to say and to do when the newest list names an older version than the one that runs.

    Args:
        newest: that version.
        before: the version that can be gone back to; empty: there is none here.
    """
    told = f"The makers of Potluck have taken version {__version__} back: the newest one is {newest} again."
    if before:
        return f"{told} Go back to {before}."
    return f"{told} No version before this one is on this computer: install {newest} by hand."


def nothing_before(failed: Failed | None) -> str:
    """Why nobody can go back, by the version that was left last; None: none was."""
    if failed is None:
        return "There is no version before this one on this computer."
    return (
        f"Potluck {failed.version} was left already, and no version before {__version__} is on this computer. To use"
        " another one, install it by hand."
    )


def why_left(failed: Failed) -> str:
    """Why a version that was tried is not used."""
    if failed.by_owner:
        return (
            f"The owner of this computer went back from Potluck {failed.version} to {__version__}."
        )
    return f"Potluck {failed.version} did not start on this computer, so {__version__} is used on. {failed.why}"
