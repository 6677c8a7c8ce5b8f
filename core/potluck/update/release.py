"""What a release publishes about itself: its version, its packages with size and SHA-256, and until when that counts."""

import platform
import sys
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from packaging.version import InvalidVersion, Version

from potluck.errors import IntegrityError
from potluck.ids import Digest
from potluck.runtime.lock import Wheel, checked_address
from potluck.system.installation import Kind
from potluck.update.envelope import RELEASE_TYPE, unseal
from potluck.update.freshness import LATEST

System: TypeAlias = Literal["linux", "macos", "windows"]
MOST_PACKAGES: Final = 64
MOST_PACKAGE_BYTES: Final = 4 << 30
_SYSTEMS: Final[dict[str, System]] = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_MACHINES: Final = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
_LINE: Final = r"\A[A-Za-z0-9][A-Za-z0-9._+-]*\Z"
Named = Annotated[str, Meta(max_length=128, pattern=_LINE)]  # also a name of a file or folder
Second: TypeAlias = Annotated[int, Meta(ge=0, le=LATEST)]  # Unix time


class Package(Struct, frozen=True, kw_only=True):
    """One file of a release."""

    name: Named
    system: Named
    machine: Named
    kind: Named
    nbytes: Annotated[int, Meta(gt=0, le=MOST_PACKAGE_BYTES)]
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    url: Annotated[str, Meta(max_length=2048)]

    def as_wheel(self, version: str) -> Wheel:
        """The same file as one of the engine's, which computers fetch from each other and from the Internet."""
        return Wheel(
            name="potluck",
            version=version,
            filename=self.name,
            digest=Digest(self.sha256),
            nbytes=self.nbytes,
            tags=frozenset(),
            url=self.url,
        )


class Release(Struct, frozen=True, kw_only=True):
    """The document in the envelope. Fields that are not known are ignored: later releases may say more.

    Attributes:
        issued: when it was signed, and its number: of two lists the later one counts, whatever version it names.
        expires: until when it counts. The same release is signed again before (`freshness.py`).
    """

    version: Named
    issued: Second
    expires: Second
    packages: Annotated[tuple[Package, ...], Meta(max_length=MOST_PACKAGES)]

    def package(self, kind: Kind, system: str, machine: str) -> Package | None:
        """The package that takes the place of one of these; None: there is none."""
        wanted = (kind, system, machine)
        found = (p for p in self.packages if (p.kind, p.system, p.machine) == wanted)
        return next(found, None)


def read_release(envelope: bytes, keys: Sequence[str]) -> Release:
    """The release that an envelope tells of, whenever that was signed.

    Raises:
        IntegrityError: it is not signed by one of these keys, or damaged.
    """
    payload = unseal(envelope, RELEASE_TYPE, keys)
    try:
        release = msgspec.json.decode(payload, type=Release)
        Version(release.version)
        for package in release.packages:
            checked_address(package.url)
    except (msgspec.MsgspecError, InvalidVersion, ValueError, RecursionError) as error:
        raise IntegrityError(
            "The list of the newest release is signed, but this Potluck cannot read it. Install the newest one by"
            " hand.",
            reason=str(error)[:200],
        ) from error
    return release


def this_system() -> str:
    """The system as releases name it."""
    return _SYSTEMS.get(sys.platform, sys.platform)


def this_machine(name: str | None = None) -> str:
    """The processor as releases name it: `x86_64` or `aarch64`."""
    found = (name or platform.machine()).lower()
    return _MACHINES.get(found, found)
