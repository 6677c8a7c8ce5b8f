"""The process of one download: it fetches the files of a variant into the Hugging Face cache.

It is a process of its own so that it can be ended at any time, in whatever it is; what it has written is
not lost. `huggingface_hub` 2 goes on with a file only while its process lives (each process begins with a
file of its own), and takes as many bytes as it is sent. So files are fetched here, with ranges, up to the
size and with the digest that the Hub promised, and laid into its cache as if it had fetched them.
"""

import hashlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from potluck.errors import HubError, IntegrityError, OfflineError, PotluckError
from potluck.files import replace
from potluck.hub.orders import (
    Ended,
    Failed,
    Order,
    Progress,
    Report,
    blob_of,
    part_of,
    pointer_of,
    repository_folder,
)
from potluck.hub.sentences import explained
from potluck.hub.variants import RemoteFile

REPORT_S = 0.25  # between two reports
_TIMEOUT_S = 30.0  # without a byte
_ATTEMPTS = 3  # in a row without a byte
_RETRY_S = 1.0
_CHUNK = 1 << 20  # bytes
_WRONG_RANGE = 416
_WHOLE = 200


class Fetch:
    """Fetches the files of an order, and reports how far it is."""

    def __init__(self, order: Order, report: Callable[[Report], None]) -> None:
        self._order = order
        self._cache = Path(order.cache)
        self._report = report
        self._there = {file.name: self._bytes_of(file) for file in order.files}  # on the disk
        self._reported_at = 0.0

    def run(self) -> None:
        """Fetch what is missing.

        Raises:
            HubError, StoreError, UsageError: says what went wrong, in a sentence.
        """
        order = self._order
        for file in order.files:
            try:
                if not pointer_of(self._cache, order.model, order.revision, file).exists():
                    self._fetch(file)
            except Exception as error:
                shown = explained(error, order.model, has_token=order.token is not None)
                if shown is None:
                    raise
                raise shown from error
            self._tell(file, file.nbytes)
        self._name_revision()

    def _bytes_of(self, file: RemoteFile) -> int:
        part = part_of(self._cache, self._order.model, file)
        return part.stat().st_size if part.exists() else 0

    def _fetch(self, file: RemoteFile) -> None:
        order = self._order
        blob = blob_of(self._cache, order.model, file)
        if not blob.exists():
            part = part_of(self._cache, order.model, file)
            self._fetch_bytes(file, part)
            replace(part, blob)
        _link(blob, pointer_of(self._cache, order.model, order.revision, file))

    def _fetch_bytes(self, file: RemoteFile, part: Path) -> None:
        """Bring a file to its whole length, and check its bytes.

        Raises:
            IntegrityError: they are not those that the Hub promised; the file is gone.
            OfflineError: the Hub cannot be reached any more.
        """
        part.parent.mkdir(parents=True, exist_ok=True)
        digest = file.new_hash()
        with part.open(
            "a+b", buffering=0
        ) as out:  # unbuffered: the process may be killed at any time
            out.seek(0)
            while piece := out.read(_CHUNK):
                digest.update(piece)
            attempts = 0
            while (there := out.tell()) < file.nbytes:
                try:
                    digest = self._stream(file, there, out, digest)
                except Exception as error:
                    shown = explained(error, self._order.model, has_token=True)
                    attempts = attempts + 1 if out.tell() == there else 0
                    if not isinstance(shown, OfflineError) or attempts >= _ATTEMPTS:
                        raise
                    time.sleep(_RETRY_S)
        if part.stat().st_size != file.nbytes or digest.hexdigest() != file.digest:
            part.unlink()
            raise IntegrityError(
                f"{file.name} of {self._order.model} arrived with other bytes than the Hub promised, and"
                " was deleted. Try again; if it happens again, test the disk and the network.",
                file=file.name,
            )

    def _stream(
        self, file: RemoteFile, there: int, out: io.FileIO, digest: "hashlib._Hash"
    ) -> "hashlib._Hash":
        """Append what the Hub sends from `there` on. Return the digest of all that is in the file."""
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        order = self._order
        url = hf_hub_url(order.model, file.name, revision=order.revision, endpoint=order.endpoint)
        headers = build_hf_headers(token=order.token or False) | {"Accept-Encoding": "identity"}
        if there:
            headers["Range"] = f"bytes={there}-"
        with get_session().stream(
            "GET", url, headers=headers, timeout=_TIMEOUT_S, follow_redirects=True
        ) as response:
            if there and response.status_code in (_WHOLE, _WRONG_RANGE):  # it sends from the start
                out.seek(0)
                out.truncate()
                digest = file.new_hash()
                if response.status_code == _WRONG_RANGE:
                    return digest
            hf_raise_for_status(response)
            for piece in response.iter_bytes():
                if out.tell() + len(piece) > file.nbytes:
                    raise HubError(
                        f"The Hub sends more of {file.name} than it has. Try again later."
                    )
                out.write(piece)
                digest.update(piece)
                self._tell(file, out.tell())
        return digest

    def _tell(self, file: RemoteFile, there: int) -> None:
        self._there[file.name] = there
        now = time.monotonic()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            self._report(Progress(sum(self._there.values())))

    def _name_revision(self) -> None:
        """Note the commit as `main`, so that other programs find it by the model's name."""
        refs = repository_folder(self._cache, self._order.model) / "refs"
        refs.mkdir(exist_ok=True)
        (refs / "main").write_text(self._order.revision)


def _link(blob: Path, pointer: Path) -> None:
    """Have a revision's file be that of its bytes; where links are not allowed (Windows), move them there."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)  # a link to bytes that are gone
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except OSError:
        replace(blob, pointer)


def main() -> None:
    """Fetch what the order on standard input says; report on standard output."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    threading.Thread(target=_end_with_node, daemon=True).start()
    try:
        Fetch(order, _report).run()
    except PotluckError as error:
        _report(Failed(code=error.code, message=error.message, data=dict(error.data)))
    else:
        _report(Ended())


def _report(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_node() -> None:
    """End when the input ends: then the node is gone, and nobody could end this process."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
