"""What the node says of a reply that has no word yet, for a person. Pure.

The node says it as comments in the stream of the reply: `reading, 512 of 4096 tokens`, and
`waiting, place 2, about 40 s`. That a model is loaded is said by its state.
"""

import re
from typing import NamedTuple

from potluck_app import wording

_READING = re.compile(r"^reading, (\d{1,9}) of (\d{1,9}) tokens")
_WAITING = re.compile(r"^waiting, place (\d{1,4})(?:, about (\d{1,6}) s)?")


class Awaited(NamedTuple):
    """A line, and how far it is, from 0 to 1; None: that is not known."""

    line: str = ""
    fraction: float | None = None


def awaited(comment: str) -> Awaited | None:
    """Return what a comment of the node says; None: nothing for a person."""
    if found := _READING.fullmatch(comment):
        read, total = map(int, found.groups())
        share = min(read / total, 1.0) if total else 0.0
        return Awaited(f"Reading your message · {wording.percent(share)}", share)
    if found := _WAITING.fullmatch(comment):
        place, seconds = int(found[1]), found[2]
        line = "Waits for the answer before it"
        if place > 1:
            line = f"Waits for {place} answers before it"
        return Awaited(f"{line} · about {wording.duration(int(seconds))}" if seconds else line)
    return None
