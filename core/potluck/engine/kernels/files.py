"""Machine code of kernels on disk, so that a process that starts need not compile them again.

To compile the kernels of a model takes a second or more, for which answers wait when a computer takes
part anew. To read them takes some milliseconds.
"""

import logging
import shutil
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import llvmlite
import msgspec
from llvmlite import binding

import potluck
from potluck.files import write_atomically
from potluck.model import formats

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32


class CompiledCode(msgspec.Struct, frozen=True, kw_only=True):
    """What a process needs to call a kernel: its object file, and how it is called."""

    kinds: tuple[str, ...]  # of the result and of each argument, as LLVM writes them
    code: bytes


class KernelFiles:
    """Keeps compiled kernels of this program in a folder, and deletes those of its other versions.

    A file that is damaged counts as missing: a kernel is compiled then. The folder has to be its owner's
    alone, since what is in it is run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _program()
        for other in folder.glob("*"):
            if other != self._folder:
                shutil.rmtree(other, ignore_errors=True)

    def recall(self, name: str) -> CompiledCode | None:
        """The kernel that was kept by this name; None: there is none."""
        try:
            data = self._file(name).read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if sha256(content).digest() != digest:
            logger.warning("a compiled kernel is damaged file=%s", self._file(name))
            return None
        return msgspec.msgpack.decode(content, type=CompiledCode)

    def keep(self, name: str, compiled: CompiledCode) -> None:
        """Keep a kernel by this name. A full disk is no error."""
        content = msgspec.msgpack.encode(compiled)
        data = sha256(content).digest() + content
        with suppress(OSError):
            write_atomically(self._file(name), data, is_durable=False)

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.kernel"


def _program() -> str:
    """A name for all that decides what the compiler makes of a kernel: it differs if the code does."""
    digest = sha256()
    versions = (potluck.__version__, llvmlite.__version__, binding.llvm_version_info)
    digest.update(repr(versions).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _sources() -> Iterable[Path]:
    """The code that writes kernels, where the program has it beside itself."""
    here = sorted(Path(__file__).parent.rglob("*.py"))
    return (*here, Path(formats.__file__)) if here else ()
