"""Choose one token from a row of logits.

The choice depends on the logits, the `Sampling` and the token's position alone: there is no state
and no generator, so a step that is replayed on another machine, or after a failure, gives the same
token. Candidates are cut off by a threshold on the logit, never by rank, and drawn in the order of
their ids: equal logits then mean the same everywhere.
Order of the filters as in `transformers`: repetition penalty, temperature, top-k, top-p, min-p.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.errors import EngineError
from potluck.wire.messages import Sampling

_RANKED = 1024  # candidates ranked at first; sorting a whole vocabulary takes ten times as long
_HUGE = 1e30  # keeps penalised logits finite whatever the penalty

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen token; with `Sampling.logprobs` its log probability and the best ones'.

    Log probabilities are those of the model's own distribution, before any filter.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: Tensor, sampling: Sampling, *, position: int, history: Sequence[int]) -> Choice:
    """Choose the token that stands at `position`.

    Args:
        logits: (V,), f32, on any device; not changed.
        sampling: how to choose.
        position: of the chosen token in its session.
        history: the tokens so far, for the repetition penalty; each below V.

    Raises:
        EngineError: a logit is not a number, or all are infinitely small.
    """
    penalised = sampling.repetition_penalty != 1.0 and len(history) > 0
    if sampling.temperature == 0.0 and not penalised:
        token_id = _best(logits)  # stays on its device: one number travels
    else:
        values = logits.to("cpu", torch.float64)
        if penalised:
            values = _penalise(values, sampling.repetition_penalty, history)
        draw = sampling.temperature > 0.0
        token_id = _draw(values, sampling, position) if draw else _best(values)
    if sampling.logprobs is None:
        return Choice(token_id=token_id)
    return _with_logprobs(logits.to("cpu", torch.float64), token_id, sampling.logprobs)


def uniform(seed: int, position: int) -> float:
    """A number of [0, 1) that looks random and depends on its arguments alone (SplitMix64)."""
    return (_mix(_mix(seed) ^ position) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014), after one step of its counter."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _best(logits: Tensor) -> int:
    value, index = logits.max(-1)
    if not math.isfinite(value.item()):
        raise _not_finite()
    return int(index.item())


def _penalise(logits: Tensor, penalty: float, history: Sequence[int]) -> Tensor:
    """Make tokens that occurred less likely (https://arxiv.org/abs/1909.05858, section 4.1)."""
    logits = logits.clone()  # `to` may have returned the caller's
    ids = torch.tensor(history).unique()
    seen = logits[ids]
    seen = torch.where(seen > 0, seen / penalty, seen * penalty)
    logits[ids] = seen.clamp_(-_HUGE, _HUGE)
    return logits


def _draw(logits: Tensor, sampling: Sampling, position: int) -> int:
    best = logits.max()
    if not math.isfinite(best.item()):
        raise _not_finite()
    logits = (logits - best) / sampling.temperature
    ids = torch.nonzero(logits >= _cutoff(logits, sampling)).view(-1)
    cumulative = logits[ids].exp().cumsum(0)
    target = uniform(sampling.seed, position) * cumulative[-1]
    index = int(torch.searchsorted(cumulative, target, right=True).item())
    return int(ids[min(index, len(ids) - 1)].item())


def _cutoff(logits: Tensor, sampling: Sampling) -> float:
    """The smallest logit that top-k, top-p and min-p leave; the largest logit is 0."""
    cutoff = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
    count = min(sampling.top_k or len(logits), len(logits))
    if sampling.top_p < 1.0:
        return max(cutoff, _nucleus(logits, sampling.top_p, count))
    if count < len(logits):
        return max(cutoff, logits.topk(count).values[-1].item())
    return cutoff


def _nucleus(logits: Tensor, top_p: float, count: int) -> float:
    """The smallest of the best logits that together have `top_p` of the weight of the `count` best.

    https://arxiv.org/abs/1904.09751
    """
    whole = count == len(logits)
    ranked = logits.topk(min(count, _RANKED) if whole else count).values
    weights = ranked.exp()
    total = logits.exp().sum() if whole else weights.sum()
    if whole and weights.sum() < top_p * total:
        ranked = logits.sort(descending=True).values
        weights = ranked.exp()
    before = weights.cumsum(0) - weights  # the weight of those ranked better
    kept = int((before < top_p * total).sum().item())
    return ranked[max(kept, 1) - 1].item()


def _with_logprobs(logits: Tensor, token_id: int, count: int) -> Choice:
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(count, len(logprobs)))
    return Choice(
        token_id=token_id,
        logprob=logprobs[token_id].item(),
        top=tuple(zip(ids.tolist(), values.tolist(), strict=True)),
    )


def _not_finite() -> EngineError:
    return EngineError(
        "The model computed values that are not numbers, so no token can be chosen. Its weights"
        " are damaged, or it needs a scheme with a wider range, such as f32."
    )
