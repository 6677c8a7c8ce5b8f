"""Products with weights of 4 and 8 bits on a CPU, by kernels generated for it.

    kernels = best_kernels()
    packed = kernels.pack(weight, bits=4)          # once; (rows, width) of f32, bf16 or f16
    x = kernels.quantise(hidden)                   # once for all matrices that read it
    y = kernels.multiply(packed, x)                # (tokens, rows), in the dtype of `hidden`

Where `llvmlite` is missing, torch computes the same, slowly.
Numbers that are not finite: weights are refused; an input makes all products of its token not finite.
"""

import importlib.util
import logging

from potluck.engine.kernels.base import Kernels
from potluck.engine.kernels.reference import ReferenceKernels
from potluck.engine.kernels.tensors import PackedWeight, QuantisedInput

__all__ = [
    "Kernels",
    "PackedWeight",
    "QuantisedInput",
    "ReferenceKernels",
    "available",
    "best_kernels",
]

logger = logging.getLogger(__name__)


def available() -> bool:
    """Whether kernels can be generated here."""
    return importlib.util.find_spec("llvmlite") is not None


def best_kernels() -> Kernels:
    """The fastest that this processor has instructions for."""
    if not available():
        logger.info("kernels path=reference reason=llvmlite is not installed")
        return ReferenceKernels()
    # Not before it is needed: a tenth of a second, and a package that may be missing.
    from potluck.engine.kernels.generated import GeneratedKernels, host_paths

    kernels = GeneratedKernels(host_paths()[0])
    logger.info("kernels path=%s", kernels.name)
    return kernels
