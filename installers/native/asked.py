"""What a computer with a package says, where it is asked by its commands."""

from __future__ import annotations

import json
import subprocess

from terminal import say

from native.roots import USER, Root


def updated(root: Root, action: str = "install") -> str:
    """Have a computer update itself; returns what it says, also if that is a refusal."""
    words = root.command("potluck", "update", action)
    said = subprocess.run(words, capture_output=True, text=True, timeout=400).stdout.strip()
    say("  " + said.replace("\n", "\n  "))
    return said


def known(root: Root) -> str:
    """What a computer says of newer versions."""
    return root.run("potluck", "update")


def version(root: Root) -> str:
    """Return which version a computer runs."""
    return root.run("potluck", "--version").split()[-1]


def is_up(root: Root) -> bool:
    """Return whether the version of a computer is on trial no more."""
    state = root.folder / f"home/{USER}/.local/opt/potluck/versions/state.json"
    return json.loads(state.read_text(encoding="utf-8"))["trying"] == ""


def members(root: Root) -> int:
    """Return how many computers of its home a computer reaches, itself included."""
    found = json.loads(root.run("potluck", "devices", "--json"))
    return sum(computer["paired"] and computer["online"] for computer in found)
