"""Embeddings of n-grams in one layer; `model/mixing/ngrams.py` has the formulas.

What is between the products is computed in f32, and a row depends on nothing but its own tokens, in the order that they
have on every computer.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.state_cache import StateCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.row_table import RowTable
from potluck.engine.layers.streams import StreamNorm
from potluck.model.families.facts import Activation
from potluck.model.mixing.ngrams import NgramSpec
from potluck.model.powers import power

_LEAST = 1e-6  # of which a root is taken


class Ngrams:
    """Adds to all streams what the table has of the last tokens."""

    __slots__ = (
        "_apply", "_convolution", "_key", "_key_norm", "_late_norm", "_query_norm", "_value",
        "spec", "table",
    )  # fmt: skip

    def __init__(
        self,
        spec: NgramSpec,
        table: RowTable,
        *,
        key: Linear,
        value: Linear,
        norms: Sequence[StreamNorm],
        convolution: Tensor,
        apply: Callable[[Tensor, Activation], Tensor],
    ) -> None:
        """Put the parts together.

        Args:
            spec: its specification.
            table: of the rows.
            key: size → (S·D).
            value: size → D.
            norms: of `NgramSpec.norms`.
            convolution: (S·D, 1, inputs), f32.
            apply: computes `gates.gate`.
        """
        self.spec, self.table, self._key, self._value = spec, table, key, value
        self._key_norm, self._query_norm, self._late_norm = norms
        self._convolution, self._apply = convolution, apply

    def __call__(self, x: Tensor, caches: Sequence[LayerCache], steps: Sequence[Step]) -> Tensor:
        """All streams (T, S·D) of some sessions → the same, with what is added to them."""
        streams, tokens = self.spec.streams, len(x)
        shape = (tokens, streams.count, streams.hidden_size)
        states = [_state(cache, step) for cache, step in zip(caches, steps, strict=True)]
        rows = [self._rows(ids, step) for (ids, _), step in zip(states, steps, strict=True)]
        found = self.table.read(torch.cat(rows)).flatten(1).to(x.device, x.dtype)
        products = self._key_norm(self._key(found)).mul_(self._query_norm(x)).view(shape)
        gates = _roots(_sums(products).mul_(power(streams.hidden_size, -0.5)))  # (T, S)
        values = self._value(found).float()[:, None].expand(shape)
        gates = gates[:, :, None].expand(shape)
        added = self._apply(torch.cat([gates, values], 2).view(-1, 2 * shape[2]), "sigmoid").view(
            tokens, -1
        )
        parts = self._late_norm(added).split([step.tokens for step in steps])
        late = torch.cat(
            [self._convolve(part, before) for part, (_, before) in zip(parts, states, strict=True)]
        )
        late = self._apply(torch.cat([late, torch.ones_like(late)], 1), "silu")
        return added.add_(late).add_(x).to(x.dtype)

    @property
    def matrices(self) -> Sequence[Linear]:
        return self._key, self._value

    @property
    def nbytes(self) -> int:
        norms = (self._key_norm, self._query_norm, self._late_norm)
        matrices = self._key.nbytes + self._value.nbytes
        return matrices + self._convolution.nbytes + sum(norm.nbytes for norm in norms)

    def _rows(self, before: Tensor, step: Step) -> Tensor:
        """The rows of a step's tokens, (T, heads), i64; `before` becomes the last ids."""
        assert step.ids is not None
        spec, tokens = self.spec, step.tokens
        known = before.cpu().long() - 1
        ids = torch.cat([torch.where(known < 0, spec.end, known), step.ids.cpu().long()])
        before.copy_(ids[tokens:] + 1)
        last = spec.order - 1
        mixed = ids[last:] * spec.multipliers[0]
        is_over = torch.zeros(tokens, dtype=torch.bool)  # a text ended in between
        rows, first, each = list[Tensor](), 0, len(spec.sizes) // last
        for back in range(1, spec.order):
            earlier = ids[last - back : last - back + tokens]
            is_over |= earlier == spec.end
            mixed = mixed ^ torch.where(is_over, spec.end, earlier) * spec.multipliers[back]
            for _ in range(each):
                rows.append(mixed % spec.sizes[len(rows)] + first)
                first += spec.sizes[len(rows) - 1]
        return torch.stack(rows, 1)

    def _convolve(self, x: Tensor, before: Tensor) -> Tensor:
        """The convolution of one session's (T, S·D), with the inputs before, which become the last ones."""
        weights, tokens, step = self._convolution[:, 0].t(), len(x), self.spec.order
        everything = torch.cat([before, x])
        before.copy_(everything[tokens:])
        out = everything[:tokens] * weights[0]
        for index, weight in enumerate(weights[1:], 1):
            start = index * step
            out += everything[start : start + tokens] * weight
        return out


def _state(cache: LayerCache, step: Step) -> list[Tensor]:
    """What a layer's state has behind that of its mixer."""
    assert isinstance(cache, StateCache)
    return cache.state(step.position, slice(-2, None))


def _sums(x: Tensor) -> Tensor:
    """The sums over the last axis, in halves: the same order on every computer."""
    while (width := x.shape[-1]) > 1:
        half = width // 2
        rest = x[..., 2 * half :]
        x = x[..., :half] + x[..., half : 2 * half]
        if rest.shape[-1]:
            x = torch.cat([x, rest], -1)
    return x[..., 0]


def _roots(x: Tensor) -> Tensor:
    """The roots of what is not nearly 0, with their signs."""
    return x.abs().clamp_min_(_LEAST).sqrt_().mul_(x.sign())
