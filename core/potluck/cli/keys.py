"""`keys`: the keys of programs that use `potluck serve`."""

import argparse
import socket
import time
from pathlib import Path

from potluck.cli.printing import put, say
from potluck.cli.terminal import put_json, put_table
from potluck.files import write_atomically
from potluck.net.identity import Identity
from potluck.net.interfaces import own_interfaces
from potluck.program_keys import ProgramKeys
from potluck.settings import Folders, exclusive, load_settings

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


def authority(options: argparse.Namespace) -> int:
    """Print the certificate of this computer's home."""
    home = _own_home(Folders.of(options.home)).own_home
    assert home is not None
    put(home.ca_pem.decode().strip())
    return 0


def server_certificate(folders: Folders) -> Path:
    """Have the home issue a certificate for a server on this computer, and return the file of it and its key."""
    name = socket.gethostname()
    own = sorted({interface.ip for interface in own_interfaces()}, key=str)
    names = dict.fromkeys([name, f"{name.partition('.')[0]}.local", "localhost"])
    file = folders.state / "serve.pem"
    write_atomically(file, _own_home(folders).issue_server(tuple(names), own))
    return file


def _own_home(folders: Folders) -> Identity:
    """This computer's identity, with a home of its own."""
    name = load_settings(folders.settings_file).shown_name
    identity = Identity.load_or_create(folders.identity, name)
    identity.create_home(name)
    return identity


def _day(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d", time.localtime(seconds))
