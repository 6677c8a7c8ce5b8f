"""Convert the text of an option to its value, or say in a sentence what is wrong with the text."""

import argparse
import re
from collections.abc import Callable
from typing import TypeVar

from potluck.api.values.network import LOWEST_PORT
from potluck.ids import RIGHTS, Right

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_MANY = 10**9  # a higher limit is not worth mentioning
_Number = TypeVar("_Number", int, float)


def size(text: str) -> int:
    """Convert `8GB`, `512 MiB` or `4000000` to bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"“{text}” is no size; write 8GB or 512MiB")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def layers(text: str) -> tuple[tuple[str, int], ...]:
    """Convert `desktop=20,laptop=12` to names and counts. A name may contain all but a comma."""
    shares: list[tuple[str, int]] = []
    for share in text.split(","):
        name, _, count = share.rpartition("=")
        if not name.strip() or not count.strip().isdecimal():
            raise argparse.ArgumentTypeError(f"“{share}” is not NAME=N")
        shares.append((name.strip(), int(count)))
    return tuple(shares)


def names(text: str) -> tuple[str, ...]:
    """Convert `desktop,laptop` to names of computers."""
    return tuple(map(name, text.split(",")))


def interfaces(text: str) -> tuple[str, ...]:
    """Convert `enp3s0,wlan0` to names of networks; `auto` to none of them."""
    return () if text == "auto" else names(text)


def port_or_auto(text: str) -> int:
    """Convert a port, and `auto` to 0."""
    return 0 if text == "auto" else number(int, LOWEST_PORT, 65535)(text)


def rights(text: str) -> tuple[Right, ...]:
    """Convert `ask,load` to what a program may do."""
    words = {word.strip() for word in text.split(",")}
    if unknown := words.difference(RIGHTS):
        raise argparse.ArgumentTypeError(f"“{min(unknown)}” is none of {', '.join(RIGHTS)}")
    return tuple(right for right in RIGHTS if right in words)


def counts(text: str) -> tuple[int, ...]:
    """Convert `1,8` to numbers from 1 to 64."""
    return tuple(map(number(int, 1, 64), text.split(",")))


def name(text: str) -> str:
    """Check the name of a computer."""
    if not 1 <= len(text.strip()) <= 128 or not text.isprintable():
        raise argparse.ArgumentTypeError("a name has 1 to 128 visible characters")
    return text.strip()


def number(kind: type[_Number], low: float, high: float) -> Callable[[str], _Number]:
    """Return a converter from text to numbers between `low` and `high`, both included."""

    def convert(text: str) -> _Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            what = "whole number" if kind is int else "number"
            least = _shown(low)
            span = f"from {least} to {_shown(high)}" if high < _MANY else f"of {least} or more"
            raise argparse.ArgumentTypeError(f"“{text}” is no {what} {span}")
        return value

    return convert


def _shown(limit: float) -> str:
    """Write whole numbers in full: `1048576`, not `1.04858e+06`."""
    return str(int(limit)) if limit == int(limit) else f"{limit:g}"
