"""Wheels that lie in a folder of the owner: those of an engine are chosen as if a lock named them.

Whoever gives a folder answers for it, as with `pip install ./file.whl`. The hashes are those of the files as they
are. So no release has to list them, and no other computer takes them unless its own lock does.
"""

import hashlib
import zipfile
from collections.abc import Callable, Iterable
from email.parser import BytesParser
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from potluck.errors import EngineError, StoreError
from potluck.ids import Digest
from potluck.reasons import reason
from potluck.runtime.choice import Choice
from potluck.runtime.lock import Environment, Wheel

OWN: Final = "own"
_MOST_METADATA: Final = 4 << 20


def choose_in(
    folder: Path, environment: Environment, is_there: Callable[[str], bool]
) -> tuple[Choice, dict[Digest, Path]]:
    """Choose torch and what it needs among the wheels in a folder.

    Args:
        folder: of the owner.
        environment: this Python.
        is_there: whether a package is installed in it already.

    Returns:
        The choice, and where each of its files is.

    Raises:
        EngineError: torch is not among them, or something that it needs.
        StoreError: the folder or a file cannot be read.
    """
    try:
        paths = sorted(folder.glob("*.whl"))
        best = _best(paths, environment)
        needed, todo = dict[str, Path](), ["torch"]
        while todo:
            if (name := todo.pop()) in needed or (name != "torch" and is_there(name)):
                continue
            if name not in best:
                raise EngineError(
                    f"{folder} has no wheel of {name} for this computer's Python. Put it there and try again."
                )
            needed[name] = best[name]
            todo += _needs(best[name], environment)
        wheels = {_wheel(name, path): path for name, path in needed.items()}
    except OSError as error:
        raise StoreError(f"{folder} cannot be read: {reason(error)}.") from error
    places = {wheel.digest: path for wheel, path in wheels.items()}
    return Choice(variant=OWN, wheels=tuple(wheels)), places


def _best(paths: Iterable[Path], environment: Environment) -> dict[str, Path]:
    """Of each package the wheel that this Python takes: the newest one, and of these the first by its tags."""
    rank = {tag: place for place, tag in enumerate(environment.tags)}
    found: dict[str, tuple[tuple[Version, int], Path]] = {}
    for path in paths:
        try:
            name, version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        place = min((rank[tag] for tag in tags if tag in rank), default=None)
        if place is not None and (name not in found or found[name][0] < (version, -place)):
            found[name] = (version, -place), path
    return {name: path for name, (_, path) in found.items()}


def _needs(path: Path, environment: Environment) -> list[str]:
    """The packages that a wheel requires in this Python."""
    needs: list[str] = []
    for line in _requirements(path):
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        markers = {**environment.markers, "extra": ""}
        if requirement.marker is None or requirement.marker.evaluate(markers):
            needs.append(canonicalize_name(requirement.name))
    return needs


def _requirements(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.count("/") == 1 and info.filename.endswith(".dist-info/METADATA"):
                    with archive.open(info) as file:
                        text = BytesParser().parsebytes(file.read(_MOST_METADATA))
                    return text.get_all("Requires-Dist", [])
    except zipfile.BadZipFile as error:
        raise StoreError(f"{path} is no wheel.") from error
    return []


def _wheel(name: str, path: Path) -> Wheel:
    _, version, _, tags = parse_wheel_filename(path.name)
    with path.open("rb") as file:
        digest = Digest(hashlib.file_digest(file, "sha256").hexdigest())
    return Wheel(
        name=name,
        version=str(version),
        filename=path.name,
        digest=digest,
        nbytes=path.stat().st_size,
        tags=tags,
    )
