"""Quantise matrices for the node, on threads of their own, so that no session waits for it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from potluck.cluster.processes.messages import Quantise, Quantised, TensorFile
from potluck.engine.kernels import Kernels, best_kernels
from potluck.engine.loading.quantise import quantise
from potluck.engine.loading.reading import HELD, Allowance, StoredTensor
from potluck.ids import Digest
from potluck.model.config import ModelConfig
from potluck.model.formats import PACKED_DTYPES
from potluck.system.processor import usable_cores


class Packer:
    """Quantises as many matrices at a time as there are cores; the others wait."""

    def __init__(self, threads: int | None) -> None:
        self._pool = ThreadPoolExecutor(threads or usable_cores(), thread_name_prefix="quantise")
        self._held = Allowance(HELD)

    @cached_property
    def _kernels(self) -> Kernels:
        return best_kernels()

    async def answer(self, message: Quantise) -> Quantised:
        """Write one matrix in its packed form.

        Raises:
            PotluckError: it cannot be written; the incomplete file is deleted.
            OSError: a part cannot be read.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._write, message)

    def _write(self, message: Quantise) -> Quantised:
        file = quantise(
            ModelConfig.from_dict(message.config),
            message.shape,
            PACKED_DTYPES[message.dtype],
            tuple(map(stored_tensor, message.parts)),
            Path(message.path),
            self._kernels,
            self._held,
        )
        return Quantised(digest=file.digest, nbytes=file.nbytes)


def stored_tensor(file: TensorFile) -> StoredTensor:
    """Convert a tensor's place on disk from the node's form into the engine's form."""
    return StoredTensor(
        name=file.name,
        dtype=file.dtype,
        shape=file.shape,
        digest=Digest(file.digest),
        path=Path(file.path),
        offset=file.offset,
        nbytes=file.nbytes,
        is_slice=file.whole is not None,
        runs=file.runs,
    )
