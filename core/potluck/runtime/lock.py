"""The lock of a variant: every wheel of torch and of what only it needs, each with its SHA-256.

A file `pylock.VARIANT.toml` as PEP 751 describes it. `installers/engine_lock.py` makes it. It comes with the
release, but is read like anything that may be damaged: names, sizes and addresses are bounded and checked.
"""

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from packaging.markers import InvalidMarker, Marker
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion

from potluck.errors import IntegrityError
from potluck.ids import Digest, is_digest

MOST_LOCK_BYTES: Final = 4 << 20
MOST_WHEELS: Final = 2048  # in one lock: 30 packages for 4 systems and 4 Pythons are 500
MOST_WHEEL_BYTES: Final = 8 << 30  # the largest of today has 1 GB
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One file of a lock.

    Attributes:
        name: of the package, normalised.
        filename: as the index calls it; never used as a path before it was checked.
        tags: of the Pythons that take it; none: it is a package of Potluck, which no index lists.
        url: where it lies on the Internet; None: only a computer of the home or an index of the owner has it.
        index: the simple index that lists it; None: it is not said.
    """

    name: str
    version: str
    filename: str
    digest: Digest
    nbytes: int
    tags: frozenset[Tag]
    url: str | None = None
    index: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A Python that the engine is for: its markers, and the tags of wheels that it takes, best first."""

    markers: Mapping[str, str]
    tags: Sequence[Tag]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    name: str
    marker: Marker | None
    wheels: tuple[Wheel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLock:
    """What one file says."""

    variant: str
    environments: tuple[Marker, ...]
    packages: tuple[_Package, ...]

    def wheels(self) -> tuple[Wheel, ...]:
        """Every file that it names, for all systems and Pythons."""
        return tuple(wheel for package in self.packages for wheel in package.wheels)

    def wheels_for(self, environment: Environment) -> tuple[Wheel, ...] | None:
        """The wheels for one Python, in the order of the file; None: it has none for it."""
        markers = dict(environment.markers)
        if self.environments and not any(m.evaluate(markers) for m in self.environments):
            return None
        rank = {tag: place for place, tag in enumerate(environment.tags)}
        chosen: list[Wheel] = []
        for package in self.packages:
            if package.marker is not None and not package.marker.evaluate(markers):
                continue
            fitting = [(_rank(wheel, rank), wheel) for wheel in package.wheels]
            best = min((pair for pair in fitting if pair[0] < len(rank)), key=_first, default=None)
            if best is None:
                return None
            chosen.append(best[1])
        return tuple(chosen) if any(wheel.name == "torch" for wheel in chosen) else None


def digest_of_wheels(wheels: Iterable[Wheel]) -> Digest:
    """What names the folder that these wheels are unpacked into: SHA-256 over their sorted digests."""
    text = "\n".join(sorted(wheel.digest for wheel in wheels))
    return Digest(hashlib.sha256(text.encode()).hexdigest())


class _WheelEntry(msgspec.Struct, frozen=True):
    name: str
    size: int
    hashes: dict[str, str]
    url: str | None = None


class _PackageEntry(msgspec.Struct, frozen=True):
    name: str
    version: str
    wheels: list[_WheelEntry]
    marker: str | None = None
    index: str | None = None


class _LockFile(msgspec.Struct, frozen=True, rename="kebab"):
    lock_version: str
    packages: list[_PackageEntry]
    tool: dict[str, dict[str, Any]]
    environments: list[str] = []


def read_lock(data: bytes) -> EngineLock:
    """Read a lock.

    Raises:
        IntegrityError: it is damaged, or names something that no lock may name.
    """
    try:
        if len(data) > MOST_LOCK_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        file = msgspec.convert(tomllib.loads(data.decode()), _LockFile)
        if file.lock_version.partition(".")[0] != "1":
            raise ValueError(f"its version is {file.lock_version[:20]!r}")
        if sum(len(package.wheels) for package in file.packages) > MOST_WHEELS:
            raise ValueError("it names too many files")
        return EngineLock(
            variant=str(file.tool["potluck"]["variant"]),
            environments=tuple(Marker(text) for text in file.environments),
            packages=tuple(_package(entry) for entry in file.packages),
        )
    except (ValueError, KeyError, InvalidMarker, InvalidVersion, RecursionError) as error:
        raise IntegrityError(
            "The list of the engine's files is damaged. Install Potluck again.", reason=str(error)
        ) from error


def _package(entry: _PackageEntry) -> _Package:
    name = canonicalize_name(entry.name, validate=True)
    return _Package(
        name=name,
        marker=None if entry.marker is None else Marker(entry.marker),
        wheels=tuple(_wheel(name, entry, wheel) for wheel in entry.wheels),
    )


def _wheel(name: str, package: _PackageEntry, entry: _WheelEntry) -> Wheel:
    try:
        called, version, _, tags = parse_wheel_filename(entry.name)
    except InvalidWheelFilename as error:
        raise ValueError(f"{entry.name[:200]!r} is no wheel") from error
    if called != name or str(version) != package.version or set(entry.name) & set('/\\\0:"'):
        raise ValueError(f"{entry.name[:200]!r} is not {name} {package.version[:50]}")
    digest = entry.hashes.get("sha256", "")
    if not is_digest(digest) or not 0 < entry.size <= MOST_WHEEL_BYTES:
        raise ValueError(f"{entry.name} has no SHA-256 or no size")
    return Wheel(
        name=name,
        version=package.version,
        filename=entry.name,
        digest=Digest(digest),
        nbytes=entry.size,
        tags=tags,
        url=None if entry.url is None else checked_address(entry.url),
        index=None if package.index is None else checked_address(package.index),
    )


def checked_address(url: str) -> str:
    """An address that files may be fetched from.

    Raises:
        ValueError: it is not https, and not this computer either.
    """
    parts = urlsplit(url)
    if parts.hostname and (parts.scheme == "https" or _is_here(parts.scheme, parts.hostname)):
        return url
    raise ValueError(f"{url[:200]!r} is no https address")


def _is_here(scheme: str, host: str) -> bool:
    return scheme == "http" and host in _LOOPBACK


def _rank(wheel: Wheel, rank: Mapping[Tag, int]) -> int:
    return min((rank.get(tag, len(rank)) for tag in wheel.tags), default=len(rank))


def _first(pair: tuple[int, Wheel]) -> int:
    return pair[0]
