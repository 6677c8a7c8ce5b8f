"""A product and a sum are rounded once on every path, also where no instruction does that."""

import random
from fractions import Fraction

import numpy as np
import pytest
from kernel_paths import BEST
from llvmlite import ir

from potluck.engine.kernels.library import library
from potluck.engine.kernels.paths import PATHS, Path
from potluck.engine.kernels.writing.emit import Emitter
from potluck.engine.kernels.writing.ir_types import KIND_F32, POINTER, VOID

COUNT = 4000
both = pytest.mark.parametrize("path", [BEST, PATHS[-1]], ids=lambda path: path.name)


def emit_all(module: ir.Module, name: str, path: Path) -> ir.Function:
    e = Emitter(ir.Function(module, ir.FunctionType(VOID, [POINTER] * 4), name), path)
    a, b, c, out = (argument.of(KIND_F32) for argument in e.arguments)
    for span in e.spans(COUNT, 16):
        out[span] = e.multiply_add(a[span], b[span], c[span])
    return e.end()


def fused(path: Path, numbers: np.ndarray) -> np.ndarray:
    """a · b + c of rows (a, b, c), computed by a kernel of this path."""
    columns = np.zeros((4, COUNT), np.float32)
    columns[:3, : len(numbers)] = numbers.T
    library(path.name).get(emit_all)(*(column.ctypes.data for column in columns))
    return columns[3, : len(numbers)]


def rounded(exact: Fraction) -> np.float32:
    """The nearest f32; of two, the even one."""
    near = np.float32(float(exact))
    some = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(some, key=lambda one: (abs(Fraction(float(one)) - exact), one.view(np.int32) & 1))


def some_numbers(rng: random.Random) -> tuple[float, float, float]:
    """Three numbers, often of few bits and of sizes that make ties likely."""
    a, b = (rng.randrange(1, 2 ** rng.choice([2, 12, 13, 24])) for _ in range(2))
    c = rng.choice([-1, 1]) * rng.randrange(2 ** rng.choice([1, 2, 24]))
    return a * 2.0 ** rng.randrange(-30, 0), float(b), c * 2.0 ** rng.randrange(-70, 10)


@both
def test_a_product_and_a_sum_are_rounded_once(path: Path) -> None:
    rng = random.Random(5)
    ties = [
        (1 + 2.0**-12, 1 + 2.0**-12, sign * 2.0**exponent)  # 1 + 2⁻¹¹ + 2⁻²⁴: a tie but for c
        for sign in (-1, 1)
        for exponent in range(-120, -20)
    ]
    tiny = [(2.0**-75, (1 + 2.0**-23) * 2.0**-74, sign * 2.0**-149) for sign in (-1, 0, 1)]
    numbers = np.array([*ties, *tiny, *(some_numbers(rng) for _ in range(3000))], np.float32)

    got = fused(path, numbers)

    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in numbers]
    assert got.tolist() == [float(rounded(each)) for each in exact]
    with np.errstate(all="ignore"):
        assert (got != numbers[:, 0] * numbers[:, 1] + numbers[:, 2]).any(), "no case that matters"


@both
def test_infinities_and_signs_of_zero_are_those_of_ieee_754(path: Path) -> None:
    inf, nan, most = np.inf, np.nan, np.finfo(np.float32).max
    cases = [
        ((inf, 2.0, 1.0), inf), ((1.0, 2.0, -inf), -inf), ((inf, 1.0, -inf), nan),
        ((inf, 0.0, 1.0), nan), ((nan, 1.0, 1.0), nan), ((most, 2.0, -most), most),
        ((most, most, 1.0), inf), ((-0.0, 1.0, -0.0), -0.0), ((-0.0, 1.0, 0.0), 0.0),
        ((1.0, 1.0, -1.0), 0.0),
    ]  # fmt: skip

    got = fused(path, np.array([numbers for numbers, _ in cases], np.float32))

    expected = np.array([result for _, result in cases], np.float32)
    np.testing.assert_array_equal(got, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got)[known], np.signbit(expected)[known])
