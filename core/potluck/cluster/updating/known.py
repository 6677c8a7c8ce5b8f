"""The newest release that this computer was told of, and what its home is told of it. Both outlive the node."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from potluck import __version__
from potluck.errors import PotluckError, StoreError
from potluck.files import recall, remember, write_atomically
from potluck.ids import Digest
from potluck.reasons import reason
from potluck.runtime.lock import Wheel
from potluck.update import freshness
from potluck.update.release import Release, read_release
from potluck.update.versions import is_newer


class _Seen(msgspec.Struct, frozen=True):
    looked_at: float = 0.0  # Unix time
    wanted: str = ""  # the version that this computer's owner installs by hand, once its package is here and good
    issued: int = 0  # of the newest list that was ever seen here, Unix time; 0: there was none
    expires: int = 0  # of that list


class KnownRelease:
    """What the newest list tells of that the project has signed: a release that is not older than what runs.

    Args:
        folder: where it is kept.
        keys: whose signatures count.
        clock: Unix time.
    """

    def __init__(
        self, folder: Path, keys: Sequence[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._keys, self._clock = folder, keys, clock
        self._seen = recall(folder / "seen.json", _Seen) or _Seen()
        self._envelope = b""
        self.release: Release | None = None
        self.newest = ""  # version of the newest list, also if it is older than what runs
        try:
            envelope = (folder / "release.json").read_bytes()
            release = read_release(envelope, keys)
        except (OSError, PotluckError):
            return  # nothing was known
        self._see(release)  # the power may have failed before it was noted, or the disk was full
        self._know(release, envelope)

    def _see(self, release: Release) -> None:
        if release.issued >= self._seen.issued:
            issued, expires = release.issued, release.expires
            self._seen = msgspec.structs.replace(self._seen, issued=issued, expires=expires)

    def _know(self, release: Release, envelope: bytes) -> None:
        self.newest = release.version
        if self.is_taken_back:
            self._envelope, self.release = b"", None
        else:
            self._envelope, self.release = envelope, release

    @property
    def version(self) -> str:
        """Its version; empty: there is none."""
        return self.release.version if self.release is not None else ""

    @property
    def is_newer(self) -> bool:
        """Whether it is newer than what runs, and the list still counts."""
        return not self._has_ended and is_newer(self.version, __version__)

    @property
    def is_taken_back(self) -> bool:
        """Whether the newest list names an older version than the one that runs."""
        return is_newer(__version__, self.newest)

    @property
    def _has_ended(self) -> bool:
        return self.release is not None and self._clock() > self.release.expires

    @property
    def ended(self) -> str:
        """The day on which the newest list that was ever seen here ended; empty: it still counts, or there was none."""
        has_ended = 0 < self._seen.expires < self._clock()
        return freshness.day(self._seen.expires) if has_ended else ""

    def read(self, envelope: bytes) -> Release:
        """The release that a list tells of, whether or not it counts today.

        Raises:
            IntegrityError: it is not signed by one of the keys, or damaged.
        """
        return read_release(envelope, self._keys)

    def take(self, envelope: bytes) -> Release:
        """Believe a list from now on. A later one may name an older version: a bad one was taken back.

        Raises:
            StaleListError: a newer list was seen, or it has ended, or the clock is wrong.
            IntegrityError: it is not signed by one of the keys, or damaged.
            StoreError: it cannot be kept.
        """
        release = self.read(envelope)
        freshness.check(release.issued, release.expires, now=self._clock(), seen=self._seen.issued)
        if envelope != self._envelope:
            try:
                write_atomically(self._folder / "release.json", envelope)
            except OSError as error:
                raise StoreError(f"Potluck cannot be updated: {reason(error)}.") from error
            self._know(release, envelope)
        self._see(release)
        self._remember(self._seen)  # each time: the disk may have had no room the last time
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

        That is a version that this computer runs, or that its owner has asked for and installs by hand, so that the
        others can take their packages from here. A list that has ended would be refused.
        """
        is_told = bool(self.version) and self.version in (__version__, self._seen.wanted)
        is_told = is_told and not self._has_ended
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
