"""Products with packed weights and with plain weights, by kernels generated for the host's CPU.

    kernels = best_kernels()
    packed = kernels.pack(weight, INT4)            # once; (rows, width) of f32, bf16 or f16
    x = kernels.quantise(hidden)                   # once for all matrices that read it
    y = kernels.multiply(packed, x)                # (tokens, rows), f32
    y = kernels.multiply_plain(hidden, weight, bias)    # bf16 or f16, as it lies in memory

Where `llvmlite` does not load, or the system lets no program make code, torch computes the same, slowly. What `best_kernels` gives is a
`GeneratedKernels` elsewhere, which also computes attention, and can take a token through whole layers
in one call: see `decode`.
Weights that are not finite are refused. An input that is not finite makes all products of its token not
finite.
"""

import logging
from pathlib import Path

from potluck.engine.kernels.base import Kernels
from potluck.engine.kernels.products.tensors import Arena, PackedWeight, QuantisedInput, Router
from potluck.engine.kernels.reference import ReferenceKernels
from potluck.errors import UsageError

__all__ = [
    "Arena",
    "Kernels",
    "PackedWeight",
    "QuantisedInput",
    "ReferenceKernels",
    "Router",
    "best_kernels",
    "keep_compiled",
]

logger = logging.getLogger(__name__)


def best_kernels(*, threads: int = 1, path: str | None = None) -> Kernels:
    """The fastest kernels that this processor has instructions for.

    Args:
        threads: that share each product; with more than one, torch's own must not spin: see `Threads`.
        path: the name of the path to take instead of the best, to compare.

    Raises:
        UsageError: the processor cannot run this path, or there is none of this name.
    """
    try:
        # Imported here, because it takes a tenth of a second, and llvmlite may not load everywhere.
        from llvmlite.binding import check_jit_execution

        from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths

        # A macOS app without the right to make code, or a hardened Linux, would end this process at the first call.
        check_jit_execution()
    except (ImportError, OSError) as error:
        logger.warning("kernels path=reference, which is slow reason=%s", error)
        return ReferenceKernels()
    paths = {usable.name: usable for usable in host_paths()}
    chosen = path or next(iter(paths))
    if chosen not in paths:
        raise UsageError(
            f"This processor cannot run the kernels called {chosen}. It can run: {', '.join(paths)}."
        )
    logger.info("kernels path=%s threads=%d", chosen, threads)
    return GeneratedKernels(paths[chosen], threads)


def keep_compiled(folder: Path) -> None:
    """Keep compiled kernels in this folder from now on, and take those that are there.

    Args:
        folder: has to be the owner's alone, since what is in it is run.
    """
    try:
        from potluck.engine.kernels.called.generated import host_paths
        from potluck.engine.kernels.files import KernelFiles
        from potluck.engine.kernels.library import library

        files = KernelFiles(folder)
    except (ImportError, OSError) as error:
        logger.warning("compiled kernels are not kept: %s", error)
        return
    for path in host_paths():
        library(path.name).files = files
