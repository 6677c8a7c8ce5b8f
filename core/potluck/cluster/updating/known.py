"""The newest release that this computer was told of, and what its home is told of it. Both outlive the node."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from potluck import __version__
from potluck.errors import PotluckError, StoreError
from potluck.files import recall, remember, write_atomically
from potluck.ids import Digest
from potluck.reasons import reason
from potluck.runtime.lock import Wheel
from potluck.update.release import Release, read_release
from potluck.update.versions import is_newer


class _Seen(msgspec.Struct, frozen=True):
    looked_at: float = 0.0  # Unix time
    wanted: str = ""  # the version that this computer's owner has asked for, once its package is here and good


class KnownRelease:
    """A release that the project has signed, and that is not older than what runs.

    Args:
        folder: where it is kept.
        keys: whose signatures count.
    """

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        self._folder, self._keys = folder, keys
        self._seen = recall(folder / "seen.json", _Seen) or _Seen()
        self._envelope = b""
        self.release: Release | None = None
        try:
            envelope = (folder / "release.json").read_bytes()
            release = read_release(envelope, keys)
        except (OSError, PotluckError):
            return  # nothing was known
        if not is_newer(__version__, release.version):  # else it was updated in another way
            self._envelope, self.release = envelope, release

    @property
    def version(self) -> str:
        """Its version; empty: there is none."""
        return self.release.version if self.release is not None else ""

    @property
    def is_newer(self) -> bool:
        """Whether it is newer than what runs."""
        return is_newer(self.version, __version__)

    def take(self, envelope: bytes) -> Release:
        """Know a release from now on, if it is newer than what is known and what runs.

        Raises:
            IntegrityError: it is not signed by one of the keys, or damaged.
            StoreError: it cannot be kept.
        """
        release = read_release(envelope, self._keys)
        if is_newer(release.version, self.version or __version__):
            try:
                write_atomically(self._folder / "release.json", envelope)
            except OSError as error:
                raise StoreError(f"Potluck cannot be updated: {reason(error)}.") from error
            self._envelope, self.release = envelope, release
        return release

    def listed(self) -> Mapping[Digest, Wheel]:
        """Its packages, for all systems: others of the home may have them."""
        if self.release is None:
            return {}
        files = (package.as_wheel(self.version) for package in self.release.packages)
        return {file.digest: file for file in files}

    # --- what was done about it

    @property
    def looked_at(self) -> float:
        """When the server was asked last, as Unix time."""
        return self._seen.looked_at

    def looked(self, at: float) -> None:
        """Note that the server was asked."""
        self._remember(msgspec.structs.replace(self._seen, looked_at=at))

    @property
    def to_tell(self) -> bytes:
        """The envelope that the home is told of; empty: there is nothing to tell.

        That is a version that this computer runs, or that its owner has asked for and that is here, so that the
        others can take it from here.
        """
        is_told = bool(self.version) and self.version in (__version__, self._seen.wanted)
        return self._envelope if is_told else b""

    @property
    def wanted(self) -> str:
        """The version that the home is told of before this computer runs it."""
        return self._seen.wanted

    def want(self, version: str) -> None:
        """Have the home told of this version; of none if it is empty."""
        if version != self._seen.wanted:
            self._remember(msgspec.structs.replace(self._seen, wanted=version))

    def _remember(self, seen: _Seen) -> None:
        self._seen = seen
        remember(self._folder / "seen.json", seen)
