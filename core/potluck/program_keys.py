"""The keys of programs: each program has its own, which is shown once, and says what the program may do.

The file has the digest of each key. A key has 256 random bits, so that a digest says nothing of it, and no slow
function is needed to guard it. The file is read again when it has changed: a revoked key is refused at once, also by a
`potluck serve` that is running.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from potluck.errors import NotFoundError, UsageError
from potluck.files import write_atomically
from potluck.ids import USUAL_RIGHTS, Right

logger = logging.getLogger(__name__)

MOST_KEYS = 256

_PREFIX = "potluck-"  # by which people and scanners of code know what it is
_NOTED_EVERY_S = 60.0
_MOST_CHARACTERS = 64  # of a name


class ProgramKey(Struct, frozen=True, kw_only=True):
    """What is kept of a key.

    Attributes:
        name: of the program.
        digest: SHA-256 of the key, in hex.
        may: what it may do.
        made: when, as Unix time.
    """

    name: str
    digest: str
    may: tuple[Right, ...]
    made: int


class _File(Struct, frozen=True):
    keys: tuple[ProgramKey, ...] = ()


class ProgramKeys:
    """The keys in a file, and beside it when each was used last.

    Args:
        file: has the keys.
        uses: has the times; it may be deleted.
        clock: returns the Unix time.
    """

    def __init__(self, file: Path, uses: Path, clock: Callable[[], float] = time.time) -> None:
        self._file, self._uses, self._clock = file, uses, clock
        self._stamp: tuple[int, int, int] | None = None
        self._keys: dict[str, ProgramKey] = {}  # by their digests
        self._noted: dict[str, float] = {}

    def all(self) -> Sequence[ProgramKey]:
        """The keys, in the order in which they were made.

        Raises:
            UsageError: the file is damaged.
        """
        self._read()
        return tuple(self._keys.values())

    def add(self, name: str, may: Sequence[Right] = USUAL_RIGHTS) -> str:
        """Make the key of a program, and return it. It is kept nowhere.

        Raises:
            UsageError: the name is taken or none, or there are too many keys.
        """
        if not name.isprintable() or not 0 < len(name) <= _MOST_CHARACTERS:
            raise UsageError(f"A program's name has 1 to {_MOST_CHARACTERS} printable characters.")
        keys = self.all()
        if any(key.name == name for key in keys):
            raise UsageError(
                f"“{name}” has a key already. Revoke it first, or choose another name."
            )
        if len(keys) >= MOST_KEYS:
            raise UsageError(f"There are {MOST_KEYS} keys already. Revoke those that are not used.")
        text = _PREFIX + secrets.token_urlsafe(32)
        key = ProgramKey(name=name, digest=_digest(text), may=tuple(may), made=int(self._clock()))
        self._write((*keys, key))
        return text

    def revoke(self, name: str) -> None:
        """Take the key of a program back.

        Raises:
            NotFoundError: it has none.
        """
        keys = self.all()
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            names = ", ".join(key.name for key in keys) or "none"
            raise NotFoundError(f"“{name}” has no key. Those that have one: {names}.")
        self._write(left)

    def find(self, text: str) -> ProgramKey | None:
        """The key with this text, whose use is noted; None: there is none, or the file is damaged."""
        try:
            self._read()
        except UsageError as error:
            logger.warning("no program's key is taken: %s", error.message)
            return None
        key = self._keys.get(_digest(text))
        if key is not None:
            self._note(key)
        return key

    def last_uses(self) -> dict[str, float]:
        """When each key was used last, as Unix time by its digest; to the minute."""
        try:
            return msgspec.json.decode(self._uses.read_bytes(), type=dict[str, float])
        except (OSError, msgspec.DecodeError):
            return {}

    def _note(self, key: ProgramKey) -> None:
        now = self._clock()
        if now - self._noted.get(key.digest, float("-inf")) < _NOTED_EVERY_S:
            return
        self._noted[key.digest] = now
        known = {digest: at for digest, at in self.last_uses().items() if digest in self._keys}
        try:
            data = msgspec.json.encode({**known, key.digest: now})
            write_atomically(self._uses, data, is_durable=False)
        except OSError as error:
            logger.warning("the use of a key was not noted: %s", error)

    def _read(self) -> None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            self._stamp, self._keys = None, {}
            return
        except OSError as error:
            raise UsageError(f"{self._file} cannot be read.") from error
        stamp = found.st_mtime_ns, found.st_ino, found.st_size
        if stamp == self._stamp:
            return
        self._stamp, self._keys = None, {}
        try:
            keys = msgspec.json.decode(self._file.read_bytes(), type=_File).keys
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise UsageError(
                f"{self._file} is damaged. Delete it, and make new keys: `potluck keys add NAME`."
            ) from error
        self._stamp, self._keys = stamp, {key.digest: key for key in keys}

    def _write(self, keys: Sequence[ProgramKey]) -> None:
        write_atomically(self._file, msgspec.json.encode(_File(tuple(keys))))
        self._stamp = None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
