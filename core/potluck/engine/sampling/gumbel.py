"""Draw a candidate by Gumbel noise: the one with the largest logit / temperature + noise.

That draws each as often as a softmax says (https://arxiv.org/abs/1411.0030, section 2), and a candidate's
noise depends on seed, position and its id alone. So a logit that differs in its last bit changes the choice
only where two sums are equal to that bit, whereas a sum over all candidates shifts every one of them. All is
made of integers, and of operations that IEEE 754 rounds in one way only; noise is computed for the few that
can win: the others are left out by their random integers.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64]
_Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # of SplitMix64's counter
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_BITS = 52  # of a random integer r; (r + 1/2) / 2⁵² and one minus that are exact
_LN_2 = math.log(2)
_TERMS = 11  # of a logarithm's series; what they leave out is below 1e-18
_PIECE = (
    16 * 1024
)  # candidates at a time, so that intermediate values stay in the processor's cache
_FIRST = 512  # and at first, so that most of the next ones cannot win any more
_NEAR = 5.0  # candidates less than e⁻⁵ times as likely as the best need noise that one in 148 has
_SLACK = 1e-6  # far more than exp and the comparison of near candidates round


def draw_key(seed: int, position: int) -> int:
    """64 bits that look random and depend on their arguments alone, for the draw at a position."""
    return _mix(_mix(seed) ^ position)


def gumbel(key: int, ids: Ids) -> _Numbers:
    """The noise of each candidate: -ln(-ln u), u from (0, 1) by its id."""
    return _noise(_integers(key, _counters(ids)))


def draw(logits: Logits, ids: Ids | None, best: float, temperature: float, key: int) -> int:
    """Draw an id.

    Args:
        logits: of all tokens.
        ids: of the candidates, in any order; None: all tokens.
        best: the largest logit of the candidates, which is finite.
        temperature: above 0.
        key: from `draw_key`.
    """
    race = _Race(logits, best, temperature, key)
    if ids is not None:
        race.enter(ids)
        return race.winner
    # Rounded down: each that is left out is less likely than e⁻⁵ times the best.
    low = np.nextafter(np.float32(best - _NEAR * temperature), np.float32(-np.inf))
    race.enter(np.flatnonzero(logits >= low))
    race.enter_the_rest()
    return race.winner


class _Race:
    """The winner of the candidates that have entered."""

    def __init__(self, logits: Logits, best: float, temperature: float, key: int) -> None:
        self._logits, self._best, self._temperature = logits, best, temperature
        self._key = key
        self._score, self.winner = -math.inf, -1

    def enter(self, ids: Ids) -> None:
        """Let these take part."""
        for some in _pieces(ids):
            integers = _integers(self._key, _counters(some))
            can_win = np.flatnonzero(integers <= self._limit(0.0))
            self._compare(some[can_win], integers[can_win])

    def enter_the_rest(self) -> None:
        """Let all tokens take part, of which those that have not yet are `_NEAR` behind the best at least."""
        for start in range(0, len(self._logits), _PIECE):
            counters = _COUNTERS[: len(self._logits) - start]
            integers = _integers(self._key + start * _STEP & _MASK, counters)
            can_win = np.flatnonzero(integers <= self._limit(_NEAR))
            self._compare(start + can_win, integers[can_win])

    def _limit(self, behind: float) -> np.uint64:
        """The largest random integer that can win, of candidates so far behind the best.

        1 - u <= -ln u = exp(-noise), and the noise has to be more than the score so far plus `behind`.
        """
        needed = max(self._score + behind - _SLACK, -0.0)
        return np.uint64(int(math.exp(-needed) * 2.0**_BITS))

    def _compare(self, ids: Ids, integers: _Words) -> None:
        if not len(ids):
            return
        distance = np.subtract(self._best, self._logits[ids], dtype=np.float64)
        with np.errstate(over="ignore"):
            scores = _noise(integers) - distance / self._temperature
        score = float(scores.max())
        first = int(ids[scores == score].min())
        if self.winner < 0 or (score, -first) > (self._score, -self.winner):
            self._score, self.winner = score, first


def _pieces(ids: Ids) -> Iterator[Ids]:
    yield ids[:_FIRST]
    for start in range(_FIRST, len(ids), _PIECE):
        yield ids[start : start + _PIECE]


def _counters(ids: Ids) -> _Words:
    """How far SplitMix64 (Steele, Lea, Flood 2014) counts up to each id."""
    counters = ids.astype(np.uint64)
    counters *= np.uint64(_STEP)
    return counters


_COUNTERS = _counters(np.arange(_PIECE))


def _integers(key: int, counters: _Words) -> _Words:
    """A random integer for each counter: the output of SplitMix64."""
    value = counters + np.uint64(key)
    other = np.empty_like(value)
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        value ^= np.right_shift(value, np.uint64(shift), out=other)
        value *= np.uint64(factor)
    value ^= np.right_shift(value, np.uint64(31), out=other)
    value >>= np.uint64(64 - _BITS)
    return value


def _noise(integers: _Words) -> _Numbers:
    """-ln(-ln u) with 1 - u = (r + 1/2) / 2⁵²: small integers have the most noise, and the finest steps."""
    u = 1.0 - (integers.astype(np.float64) + 0.5) * 2.0**-_BITS
    return -_log(-_log(u))


def _log(x: _Numbers) -> _Numbers:
    """The natural logarithm, with an error below 1e-15 of it: of x = m 2ⁿ it is ln m + n ln 2."""
    m, n = np.frexp(x)
    is_small = m < math.sqrt(0.5)
    m, n = np.where(is_small, m + m, m), n - is_small
    s = (m - 1.0) / (m + 1.0)
    square, series = s * s, np.zeros_like(s)
    for term in reversed(range(_TERMS)):  # ln m = 2 artanh s = 2 Σ s²ᵗ⁺¹ / (2t + 1)
        series *= square
        series += 2.0 / (2 * term + 1)
    return series * s + n * _LN_2


def _mix(value: int) -> int:
    """The output function of SplitMix64, after one step of its counter."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FACTORS[0]) & _MASK
    value = ((value ^ (value >> 27)) * _FACTORS[1]) & _MASK
    return value ^ (value >> 31)
