"""Kernels that are compiled for a path of the processor, and called with their work cut into parts."""

from collections.abc import Hashable

from torch import Tensor

from potluck.engine.kernels.library import Emit, Kernel, Library, address_of, library
from potluck.engine.kernels.paths import Path
from potluck.engine.kernels.stream_kernel import emit_read
from potluck.engine.kernels.threads import Threads

_SHARES = 4  # parts of a job for each thread: the last to finish is late by a quarter at most


class CompiledKernels:
    """Compiles each kernel once. With several threads, all but packing is shared among them."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._library: Library = library(path.name)
        self._threads = Threads(self._library, threads) if threads > 1 else None

    def read(self, memory: Tensor, ahead: int = 0) -> int:
        """Read these bytes and do nothing else, to time what no product with them can be faster than.

        `ahead` is one of `READ_AHEAD`.
        """
        return self._library.get(emit_read, ahead)(memory.data_ptr(), memory.nbytes)

    @property
    def path(self) -> Path:
        return self._library.path

    def compiled(self, emit: Emit, *parameters: Hashable) -> Kernel:
        """Return a kernel for callers that check its arguments themselves: `Decoder`, and the two ends."""
        return self._library.get(emit, *parameters)

    @property
    def job(self) -> int:
        """The address of the job that threads share, for kernels that write it themselves; 0: the caller is alone."""
        return 0 if self._threads is None else self._threads.job

    def wake(self) -> None:
        """Wake the threads before such a kernel is called."""
        if self._threads is not None:
            self._threads.wake()

    @property
    def shares(self) -> int:
        """How many parts to cut shared work into."""
        return 1 if self._threads is None else self._threads.count * _SHARES

    def close(self) -> None:
        """Let the threads end."""
        if self._threads is not None:
            self._threads.close()

    def run(self, piece: Kernel, arguments: int, blocks: int, step: int | None = None) -> None:
        """Call a piece for all blocks, of which a thread takes `step` at a time. None: a share."""
        step = max(1, blocks // self.shares) if step is None else step
        if self._threads is None or blocks <= step:
            piece(arguments, 0, blocks)
        else:
            self._threads.run(address_of(piece), arguments, blocks, step)
