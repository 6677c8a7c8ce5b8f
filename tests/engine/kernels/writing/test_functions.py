"""Powers of e are near those of float64 and alike on every path, also at their ends."""

import numpy as np
import pytest
from kernel_paths import BEST
from llvmlite import ir

from potluck.engine.kernels.library import library
from potluck.engine.kernels.paths import PATHS, Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.functions import emit_exp
from potluck.engine.kernels.writing.ir_types import I64, KIND_F32, POINTER, VOID


def emit_powers(module: ir.Module, name: str, path: Path, is_positive: bool) -> ir.Function:
    e = Emitter(ir.Function(module, ir.FunctionType(VOID, [POINTER, POINTER, I64]), name), path)
    x, out, count = e.arguments
    for span in e.spans(count, 16):
        out.of(KIND_F32)[span] = emit_exp(e, x.of(KIND_F32)[span], is_positive=is_positive)
    return e.end()


def powers(path: Path, x: np.ndarray, *, is_positive: bool = True) -> np.ndarray:
    out = np.empty_like(x)
    library(path.name).get(emit_powers, is_positive)(x.ctypes.data, out.ctypes.data, len(x))
    return out


def test_powers_are_near_those_of_float64() -> None:
    x = np.linspace(-87, 88, 100_003, dtype=np.float32)

    got = powers(BEST, x)

    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=2.5e-7)


def test_of_the_lowest_numbers_powers_are_zero_and_of_the_highest_infinite() -> None:
    x = np.array([-88, -1e30, -np.inf, 88.1, np.inf], np.float32)

    assert powers(BEST, x).tolist() == [0, 0, 0, np.inf, np.inf]


@pytest.mark.parametrize("is_positive", [False, True])
def test_a_power_of_nan_is_nan(is_positive: bool) -> None:
    x = np.array([0, np.nan, -1], np.float32)

    got = powers(BEST, x, is_positive=is_positive)

    assert np.isnan(got).tolist() == [False, True, False]


def test_a_processor_that_cannot_round_a_multiply_add_once_gets_the_same_bits() -> None:
    x = np.linspace(-89, 89, 10_001, dtype=np.float32)

    np.testing.assert_array_equal(powers(BEST, x), powers(PATHS[-1], x))
