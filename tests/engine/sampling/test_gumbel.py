"""Draws follow the softmax, are those of all candidates' noise, and do not hang on a last bit."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest

from potluck.engine.sampling.gumbel import draw, draw_key, gumbel

KEY = draw_key(3, 40)
NOISE = [
    "0x1.a5ca656c8d698p+0",
    "-0x1.24587375fca4ep+0",
    "0x1.e88f47446a78fp-2",
    "0x1.8e182931b1c2bp+1",
]


def some_logits(size: int, spread: float) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(size).standard_normal(size) * spread).astype(np.float32)


def chi_square(drawn: Counter[int], expected: npt.NDArray[np.float64]) -> float:
    """How far the counts are from the expected ones, in standard deviations of a chi-square variable."""
    parts = [(drawn[index] - count) ** 2 / count for index, count in enumerate(expected)]
    degrees = len(parts) - 1
    return (sum(parts) - degrees) / math.sqrt(2 * degrees)


@pytest.mark.parametrize(
    ("size", "spread", "over"),
    [(3, 0.5, "positions"), (30, 1.0, "positions"), (30, 1.0, "seeds"), (200, 0.1, "seeds")],
)
def test_candidates_are_drawn_as_often_as_the_softmax_says(
    size: int, spread: float, over: str
) -> None:
    logits, count, temperature = some_logits(size, spread), 8000, 0.8
    best = float(logits.max())
    keys = (draw_key(7, at) if over == "positions" else draw_key(at, 7) for at in range(count))

    drawn = Counter(draw(logits, None, best, temperature, key) for key in keys)

    powers = np.exp((logits.astype(np.float64) - best) / temperature)
    assert abs(chi_square(drawn, count * powers / powers.sum())) < 4


def test_noise_of_one_position_is_spread_as_gumbel_numbers_are() -> None:
    noise, steps = gumbel(KEY, np.arange(100_000)), 50

    quantiles = np.exp(-np.exp(-noise))  # even between 0 and 1
    counts = Counter((quantiles * steps).astype(int).tolist())

    assert abs(chi_square(counts, np.full(steps, len(noise) / steps))) < 4
    assert abs(np.corrcoef(noise[1:], noise[:-1])[0, 1]) < 0.01


@pytest.mark.parametrize("size", [1, 2, 600, 20_000, 40_000])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 4.0, 1e4])
def test_the_winner_is_that_of_all_candidates(size: int, spread: float) -> None:
    logits, ids = some_logits(size, spread), np.arange(size)
    best = float(logits.max())
    for position in range(20):
        key = draw_key(1, position)
        scores = gumbel(key, ids) - (best - logits.astype(np.float64)) / 0.7

        assert draw(logits, None, best, 0.7, key) == int(scores.argmax())
        assert draw(logits, ids[::-1], best, 0.7, key) == int(scores.argmax())


def test_noise_is_that_of_the_c_library_in_64_bits() -> None:
    for value in gumbel(KEY, np.arange(2000)).tolist():
        u = math.exp(-math.exp(-value))

        assert value == pytest.approx(-math.log(-math.log(u)), rel=1e-9, abs=1e-9)


def test_the_noise_is_the_same_on_every_computer() -> None:
    # Python's floats are those of IEEE 754; these are the bits that they give.
    assert [value.hex() for value in gumbel(KEY, np.array([0, 1, 77, 250_000]))] == NOISE


def test_logits_that_differ_in_the_last_bits_give_the_same_tokens() -> None:
    """A draw from cumulative weights of so many candidates would change one in a hundred."""
    logits = some_logits(32_000, 0.1)
    other = logits + np.random.default_rng(0).uniform(-1e-6, 1e-6, len(logits)).astype(np.float32)

    def drawn(row: npt.NDArray[np.float32]) -> list[int]:
        best = float(row.max())
        return [draw(row, None, best, 1.0, draw_key(5, at)) for at in range(1000)]

    assert drawn(logits) == drawn(other)
