"""`keys`: the keys of programs that use `potluck serve`."""

import argparse
import time

from potluck.cli.printing import put, say
from potluck.cli.terminal import put_json, put_table
from potluck.program_keys import ProgramKeys
from potluck.settings import Folders, exclusive

_WAIT_S = 5.0  # for another `potluck keys`


def program_keys(folders: Folders) -> ProgramKeys:
    """Those of the user of these folders."""
    return ProgramKeys(folders.program_keys, folders.program_key_uses)


def list_keys(options: argparse.Namespace) -> int:
    """Print which programs have a key, what they may do, and when they used it."""
    keys = program_keys(Folders.of(options.home))
    uses = keys.last_uses()
    if options.json:
        put_json(
            [
                {"name": key.name, "may": key.may, "made": key.made, "used": uses.get(key.digest)}
                for key in keys.all()
            ]
        )
        return 0
    rows = [
        (key.name, ", ".join(key.may), _day(key.made), _day(uses.get(key.digest)))
        for key in keys.all()
    ]
    if rows:
        put_table(("PROGRAM", "MAY", "MADE", "LAST USED"), rows)
    else:
        put("No program has a key. Make one: potluck keys add NAME")
    return 0


def add_key(options: argparse.Namespace) -> int:
    """Make a key and print it."""
    folders = Folders.of(options.home)
    with exclusive(folders.program_keys.with_suffix(".lock"), wait_s=_WAIT_S):
        text = program_keys(folders).add(options.name, options.may)
    put(text)
    say("This is the only time that it is shown. It is valid at once.")
    return 0


def revoke_key(options: argparse.Namespace) -> int:
    """Take a key back."""
    folders = Folders.of(options.home)
    with exclusive(folders.program_keys.with_suffix(".lock"), wait_s=_WAIT_S):
        program_keys(folders).revoke(options.name)
    say(f"The key of “{options.name}” is refused from now on.")
    return 0


def _day(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d", time.localtime(seconds))
