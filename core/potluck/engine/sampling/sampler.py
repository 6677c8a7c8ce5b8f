"""Choose one token from a row of logits.

The choice depends on the logits, the `Sampling` and the token's position alone. There is no state and
no random generator, so a step that is replayed on another machine, or after a failure, gives the same
token. Filters cut candidates off by a threshold on the logit, never by rank, and `gumbel.py` draws from what
is left, so equal logits mean the same everywhere.
The order is that of vLLM and `transformers`: bias, repetition penalty, presence and frequency penalties, the
tokens that a grammar allows, temperature, top-k, top-p, min-p.

Top-p and min-p weigh candidates. A weight is a whole number, made by operations that IEEE 754 rounds in one
way only: not by `exp`, which each library rounds differently. Whole numbers have the same sum in any order. So
every machine chooses the same token. Numpy does this in a fraction of the time that torch takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potluck.engine.sampling.gumbel import draw, draw_key
from potluck.errors import EngineError
from potluck.model.limits import MAX_VOCAB
from potluck.wire.activation_messages import Sampling

_Logits = npt.NDArray[np.float32]
_Integers = npt.NDArray[np.int64]

_BEST = (1 << 62) // MAX_VOCAB  # 2⁴¹, the weight of the best; sums of such weights fit into 64 bits
_REACH = 29.0  # more than 41 ln 2: a candidate e⁻²⁹ times as likely as the best has the weight 0
_SQUARINGS = 8  # from e^(x/256) to eˣ
_SERIES = (1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0)  # of e^(x/256); more terms change no weight
_PIECE = 16 * 1024  # logits at a time, so that intermediate values stay in the processor's cache
_COLUMNS = 2048  # that logits are divided into, to find quickly which are not among the best few
_HUGE = 1e30  # keeps penalised logits finite whatever the penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen token; with `Sampling.logprobs` its log probability and the best ones'.

    Log probabilities are those of the model's own distribution, before any filter. Where only some
    tokens are allowed, they are those of a choice among these.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses tokens. It keeps its memory, since new pages take longer than computing in them.

    It is for one thread.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        """`dtype` is that of the hidden states, which may be too narrow for a model."""
        self._dtype = dtype
        self._room = np.empty((2, 0), np.int64)
        self._floats = np.empty((2, _PIECE))

    def choose(
        self, logits: Tensor, sampling: Sampling, *, position: int, history: Sequence[int]
    ) -> Choice:
        """Choose the token that stands at `position`.

        Args:
            logits: (V,), f32, on any device; not changed.
            sampling: how to choose.
            position: of the chosen token in its session.
            history: the tokens so far, for the penalties; each below V.

        Raises:
            EngineError: a logit is not a number, or all are infinitely small.
        """
        drawn, changed = sampling.temperature > 0.0, sampling.is_changed
        if not (drawn or changed or sampling.logprobs is not None or logits.device.type == "cpu"):
            return Choice(token_id=self._best_on_device(logits))
        row: _Logits = logits.to("cpu", torch.float32).numpy()
        best, values = self._best(row), row
        if changed:
            values = _biased(row, sampling, history, position)
            if sampling.allowed is not None:
                allowed = _allowed(sampling.allowed, len(row))
                values = _only(values, allowed)
                row = _only(row, allowed)
            best = self._best(values)
        token_id = self._draw(values, float(values[best]), sampling, position) if drawn else best
        if sampling.logprobs is None:
            return Choice(token_id=token_id)
        return self._with_logprobs(row, token_id, sampling.logprobs)

    def score(self, logits: Tensor, token_id: int, top: int) -> Choice:
        """The log probability of a token that is known, and those of so many of the best.

        Raises:
            EngineError: as `choose`.
        """
        row: _Logits = logits.to("cpu", torch.float32).numpy()
        self._best(row)
        return self._with_logprobs(row, token_id, top)

    def _draw(self, logits: _Logits, best: float, sampling: Sampling, position: int) -> int:
        ids = self._candidates(logits, best, sampling)
        if sampling.top_p < 1.0 or sampling.min_p > 0.0:
            ids = self._likely(logits, ids, best, sampling)
        chosen = None if isinstance(ids, slice) else ids
        key = draw_key(sampling.seed, position)
        return draw(logits, chosen, best, sampling.temperature, key)

    def _candidates(self, logits: _Logits, best: float, sampling: Sampling) -> _Integers | slice:
        """The ids that top-k leaves, or those that the filters after it may leave; all where these are many."""
        if 0 < sampling.top_k < len(logits):
            return np.flatnonzero(logits >= self._ranked(logits, sampling.top_k))
        reach = math.inf
        if sampling.top_p < 1.0:
            reach = _REACH
        elif sampling.min_p > 0.0:  # top-p counts what min-p leaves out
            # This leaves a few more than min-p does. The weights decide about those.
            reach = min(_REACH, 0.001 - math.log(sampling.min_p))
        return _few(logits >= best - reach * sampling.temperature)

    def _likely(
        self, logits: _Logits, ids: _Integers | slice, best: float, sampling: Sampling
    ) -> _Integers:
        """The candidates that top-p and min-p leave, by their weights."""
        candidates = logits[ids]
        weights, room = self._integers(len(candidates))
        self._weigh(candidates, best, sampling.temperature, weights)
        cut = max(1, math.ceil(sampling.min_p * _BEST))
        if sampling.top_p < 1.0:
            cut = max(cut, _nucleus(weights, sampling.top_p, room))
        left = np.flatnonzero(weights >= cut)
        return left if isinstance(ids, slice) else ids[left]

    def _ranked(self, logits: _Logits, rank: int) -> np.float32:
        """The logit of this rank; 1 is the best."""
        if 4 * rank <= _COLUMNS <= len(logits) // 4:
            # At least `rank` columns have a maximum this large, so smaller logits have a lower rank.
            whole = len(logits) // _COLUMNS * _COLUMNS
            maxima: _Logits = logits[:whole].reshape(-1, _COLUMNS).max(0)
            logits = logits[np.flatnonzero(logits >= self._ranked(maxima, rank))]
        room = self._integers(len(logits)).view(np.float32)[0, : len(logits)]
        room[:] = logits
        room.partition(len(logits) - rank)
        return room[-rank]

    def _weigh(self, logits: _Logits, best: float, temperature: float, weights: _Integers) -> None:
        """Write each candidate's weight: `_BEST` times e to the ((logit - best) / temperature).

        Computed as `_BEST` / (e^(x/256))^256 of x = (best - logit) / temperature. Each operation is
        monotone, so a threshold on weights is one on logits, and none gives NaN, even for infinity.
        """
        for start in range(0, len(logits), _PIECE):
            piece = logits[start : start + _PIECE]
            x, power = self._floats[:, : len(piece)]
            np.subtract(best, piece, out=x, dtype=np.float64)
            with np.errstate(over="ignore"):
                x /= temperature * 2**_SQUARINGS
                np.multiply(x, _SERIES[0], out=power)
                for term in _SERIES[1:]:
                    power += term
                    power *= x
                power += 1.0
                for _ in range(_SQUARINGS):
                    np.square(power, out=power)
            np.divide(_BEST, power, out=power)
            weights[start : start + _PIECE] = power  # rounded towards zero

    def _with_logprobs(self, logits: _Logits, token_id: int, count: int) -> Choice:
        best = logits.max()
        pieces = (logits[start : start + _PIECE] for start in range(0, len(logits), _PIECE))
        total = sum(float(np.exp(piece - best).sum(dtype=np.float64)) for piece in pieces)
        shift = float(best) + math.log(total)
        top: list[int] = []
        if count > 0:
            last = self._ranked(logits, min(count, len(logits)))
            better = np.flatnonzero(logits > last)
            top = better[np.argsort(-logits[better], kind="stable")].tolist()
            if math.isfinite(last):  # else fewer tokens than that can be chosen
                top += np.flatnonzero(logits == last)[: count - len(top)].tolist()
        return Choice(
            token_id=token_id,
            logprob=float(logits[token_id]) - shift,
            top=tuple((i, float(logits[i]) - shift) for i in top),
        )

    def _integers(self, count: int) -> _Integers:
        """Two rows of `count` whole numbers that hold anything, until the next call."""
        if self._room.shape[1] < count:
            self._room = np.empty((2, count), np.int64)
        return self._room[:, :count]

    def _best(self, logits: _Logits) -> int:
        """The first id of the largest logit. Numpy takes a tenth of the time that torch takes."""
        index = int(logits.argmax())  # of a NaN, if there is one
        if not math.isfinite(logits[index]):
            raise _not_finite(self._dtype)
        return index

    def _best_on_device(self, logits: Tensor) -> int:
        value, index = logits.max(-1)  # two numbers travel instead of a row
        if not math.isfinite(value.item()):
            raise _not_finite(self._dtype)
        return int(index.item())


def _biased(logits: _Logits, sampling: Sampling, history: Sequence[int], position: int) -> _Logits:
    """Add the biases, and make tokens that occurred less likely, or more, as the penalties say.

    The repetition penalty divides (https://arxiv.org/abs/1909.05858, section 4.1) for all tokens so far.
    The other two subtract, as OpenAI defines them, for the tokens of the answer.
    """
    logits = logits.copy()
    for entry in sampling.logit_bias:
        logits[entry.token_id] += np.float32(entry.bias)
    if not history:
        return logits
    if (penalty := sampling.repetition_penalty) != 1.0:
        ids = np.asarray(history, np.int64)
        seen = logits[ids].astype(np.float64)
        with np.errstate(over="ignore"):
            seen = np.where(seen > 0, seen / penalty, seen * penalty)
        logits[ids] = seen.clip(-_HUGE, _HUGE)
    if sampling.presence_penalty or sampling.frequency_penalty:
        answered = min(max(position - sampling.answer_start, 0), len(history))
        ids, counts = np.unique(history[len(history) - answered :], return_counts=True)
        ids = ids.astype(np.int64)  # of no tokens they would be floats
        seen = logits[ids].astype(np.float64) - sampling.presence_penalty
        logits[ids] = (seen - sampling.frequency_penalty * counts).clip(-_HUGE, _HUGE)
    return logits


def _allowed(allowed: bytes | Sequence[int], count: int) -> npt.NDArray[np.bool_]:
    """Whether each of `count` tokens is allowed."""
    if isinstance(allowed, bytes):
        bits = np.unpackbits(np.frombuffer(allowed, np.uint8), count=count, bitorder="little")
        return bits.view(np.bool_)
    chosen = np.zeros(count, np.bool_)
    chosen[np.asarray(allowed, np.int64)] = True
    return chosen


def _only(logits: _Logits, allowed: npt.NDArray[np.bool_]) -> _Logits:
    """The logits, with those that are not allowed infinitely small."""
    return np.where(allowed, logits, np.float32(-np.inf))


def _few(chosen: npt.NDArray[np.bool_]) -> _Integers | slice:
    """The indices of true values, or all indices if so many are true that picking takes longer."""
    if np.count_nonzero(chosen) * 4 > len(chosen):
        return slice(None)
    return np.flatnonzero(chosen)


def _nucleus(weights: _Integers, top_p: float, room: _Integers) -> int:
    """The largest weight such that those as large or larger have `top_p` of the sum.

    See https://arxiv.org/abs/1904.09751. It is found by halving the range of candidates that has it;
    `room` takes as many numbers as there are weights.
    """
    total = int(weights.sum())
    needed = math.ceil(top_p * total)
    spare = (total - needed) // len(weights)  # all weights up to it are, together, not needed
    heavy = weights[_few(weights > spare)]
    rest = room[: len(heavy)]
    rest[:] = heavy
    while len(rest) > 1:
        middle = len(rest) // 2
        rest.partition(middle)
        upper = int(rest[middle:].sum())
        if upper >= needed:
            rest = rest[middle:]
        else:
            needed -= upper
            rest = rest[:middle]
    return int(rest[0])


def _not_finite(dtype: torch.dtype) -> EngineError:
    """The error of logits that are not finite; what to do depends on the dtype of the hidden states."""
    why = (
        "Numbers of 16 bits (f16) may be too narrow for this model: load it with --scheme bf16 or f32."
        if dtype == torch.float16
        else "Its weights are damaged or were saved badly, or it was made for another program: download"
        " it again, or choose another model."
    )
    return EngineError(
        f"The model computed values that are not numbers, so no token can be chosen. {why}"
    )
