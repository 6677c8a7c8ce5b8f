"""`uninstall`: what every uninstaller asks of Potluck itself, before it removes the program.

It ends what runs, ends the start with the computer, and deletes what Potluck has written: always what
the program alone needs, and what is its owner's only on request. It says what stays, and where.
"""

import argparse
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from potluck.cli.terminal import ask, must_be_interactive, say
from potluck.client import NodeGoneError
from potluck.errors import UsageError, format_bytes
from potluck.launch import find
from potluck.reasons import reason
from potluck.settings import AlreadyRunningError, Folders, exclusive
from potluck.system.autostart import autostart
from potluck.system.installation import package

_END_S: Final = 30.0  # a node that ends has other computers free their memory first
_HOW: Final = {
    "deb": "Now remove the program: sudo apt remove potluck",
    "macos": "Now move Potluck to the trash.",
}


def uninstall(options: argparse.Namespace) -> int:
    """Prepare the removal of the program. The exit status is 1 if something could not be deleted."""
    folders = Folders.of(options.home)
    deletes_all = _is_all_to_go(folders, options.keep)
    _end(folders)
    for program in ("window", "worker"):
        autostart(program, folders.home).set(False)
    failed = _delete(everything(folders) if deletes_all else programs_own(folders))
    kept = [folder for folder in everything(folders) if folder.exists()]
    if kept:
        say("These folders stay: " + ", ".join(map(str, kept)))
    else:
        say("Nothing of Potluck is left in your folders.")
    say("Models that other programs have, or that lie in folders that you chose, were not touched.")
    installed = package()
    if installed is not None and installed.kind in _HOW:
        say(_HOW[installed.kind])
    return 1 if failed else 0


def everything(folders: Folders) -> list[Path]:
    """The folders of a user that Potluck writes to, each once, none within another."""
    found = {folders.config, folders.data, folders.cache, folders.state}
    return sorted(f for f in found if not any(p in found for p in f.parents))


def programs_own(folders: Folders) -> list[Path]:
    """What the program alone needs: the engine, packages, compiled kernels, logs. None of it is its owner's."""
    return [folders.data / "engine", folders.data / "updates", folders.state]


def _is_all_to_go(folders: Folders, keep: bool | None) -> bool:
    if keep is not None:
        return not keep
    there = [folder for folder in everything(folders) if folder.exists()]
    if not there:
        return True
    must_be_interactive("Uninstalling", "Say --keep or --delete, where nobody can be asked.")
    nbytes = sum(_size(folder) for folder in there)
    say(f"Potluck has {format_bytes(nbytes)} of models, chats, settings and keys on this computer.")
    say("If they stay, a later installation goes on with them.")
    if ask("Shall they stay?"):
        return False
    if not ask("Delete all of it for ever?"):
        raise UsageError("Nothing was removed.")
    return True


def _end(folders: Folders) -> None:
    """End the node, and wait until it is gone: it would write its files again.

    Raises:
        UsageError: it does not end.
    """
    if not folders.state.exists():
        return
    try:
        if (client := find(folders)) is not None:
            say("Potluck is running; ending it.")
            client.shutdown()
    except NodeGoneError:
        pass  # it ended just now
    try:
        with exclusive(folders.node_lock, wait_s=_END_S):
            pass
    except AlreadyRunningError:
        raise UsageError(
            "Potluck is still running on this computer, and nothing was removed. Close its window,"
            " quit it in the tray, and try again."
        ) from None


def _delete(paths: Iterable[Path]) -> bool:
    """Delete folders, and those above them that are empty then; returns whether one is left."""
    failed = False
    for path in paths:
        try:
            if path.is_symlink():
                say(f"{path} leads to another folder, which stays: {path.resolve()}")
                path.unlink()
            elif path.exists():
                shutil.rmtree(path)
        except OSError as error:
            failed = True
            say(f"{path} cannot be deleted: {reason(error)}. Delete it yourself.")
        if path.parent.name == "potluck":
            _remove_if_empty(path.parent)
    return failed


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # something else is in it
        folder.rmdir()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue  # it was deleted meanwhile, or belongs to somebody else
    return total
