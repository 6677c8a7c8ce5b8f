"""What every command prints: to stdout the answer, to stderr everything else.

Nothing that is printed can steer the terminal, whoever wrote it. No other module prints.
"""

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from potluck.cli.markdown import DIM, Span
from potluck.system.terminals import shows_styles
from potluck.wire.fields import printable


def say(text: str = "", *, end: str = "\n", style: str = "") -> None:
    """Print to stderr what is not part of the answer."""
    _write(sys.stderr, text, end, style)


def say_dim(text: str) -> None:
    """Print to stderr what is rarely read."""
    say(text, style=DIM)


def put(text: str, *, end: str = "\n") -> None:
    """Print the answer, or a part of it, to stdout."""
    _write(sys.stdout, text, end)


def put_spans(spans: Iterable[Span]) -> None:
    """Print parts of the answer in their styles."""
    for span in spans:
        _write(sys.stdout, span.text, "", span.style)


def layers(start: int, stop: int) -> str:
    """The layers from one to before another, by number: `layers 3 to 5`, `layer 3`."""
    return f"layer {start}" if stop - start == 1 else f"layers {start} to {stop - 1}"


def _write(stream: TextIO, text: str, end: str, style: str = "") -> None:
    """Print what may come from strangers: a model's answer and its files, a computer's name.

    It cannot move the cursor, set the title or reverse what follows. All that a command prints comes
    through here; the only escape sequences are those of `style`.
    """
    shown = printable(text)
    if style and has_styles(stream):
        shown = f"\x1b[{style}m{shown}\x1b[0m"
    print(shown, end=end, file=stream, flush=True)


def has_styles(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that shows styles, and the person wants them (no-color.org)."""
    return stream.isatty() and shows_styles(os.environ)
