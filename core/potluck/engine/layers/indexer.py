"""The lightning indexer in torch: see `IndexerSpec`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.latent_cache import LatentCache
from potluck.engine.kernels.products.tensors import Angles
from potluck.engine.layers.attention import Step
from potluck.engine.layers.choosing import Choice, choose
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.rotary import rotate
from potluck.model.footprint import HEADS_AT_ONCE, INDEX_QUERIES
from potluck.model.mixing.indexer import IndexerSpec


class Turned(NamedTuple):
    """What an indexer makes of some tokens, rope applied."""

    queries: Tensor  # (T, H, K)
    keys: Tensor  # (T, K)
    weights: Tensor  # (T, H), f32


class Indexer:
    """Scores cached tokens, and chooses those that a query sees."""

    __slots__ = ("keys", "norm", "queries", "spec", "weights")

    def __init__(
        self,
        spec: IndexerSpec,
        queries: Linear,
        keys: Linear,
        norm: RmsNorm,
        weights: FloatLinear,
    ) -> None:
        """Make it of its parts; `weights`, f32, makes those of the heads."""
        self.spec, self.queries, self.keys = spec, queries, keys
        self.norm, self.weights = norm, weights

    def project(self, x: Tensor, latents: Tensor) -> tuple[Tensor, ...]:
        """Normed hidden states (T, D) and queries' latents → queries (T, H·K), keys (T, K), weights (T, H)."""
        return self.queries(latents), self.keys(x), self.weights(x.float()).to(x.dtype)

    def turn(self, rows: Tensor, angles: Angles) -> Turned:
        """What `project` gave of some tokens, keys normed, and both turned by rope."""
        spec, T = self.spec, len(rows)
        q, k, weights = rows.split((spec.q_size, spec.head_dim, spec.heads), -1)
        k = self.norm(k)
        both = torch.cat((q.view(T, spec.heads, -1), k[:, None]), 1)  # (T, H + 1, K)
        rotate(both[..., : spec.rotary_dim], angles.cosines, angles.sines)
        return Turned(both[:, :-1], both[:, -1], weights.float() * spec.scale)

    def note(self, cache: LayerCache, step: Step) -> None:
        """Finish what is cached of a step's tokens, whose keys are there."""

    def choose(self, made: Turned, cache: LayerCache, step: Step) -> Choice:
        """For each token which cached ones it sees, of those up to itself."""
        assert isinstance(cache, LatentCache)
        keys = cache.read_index(step.end)  # (length, K)
        parts = [each.split(INDEX_QUERIES) for each in (made.queries, made.weights, step.causal)]
        chosen = [self._choose(keys, *some) for some in zip(*parts, strict=True)]
        return Choice(self.spec.chosen, step.position, mask=torch.cat(chosen))

    def _choose(self, keys: Tensor, queries: Tensor, weights: Tensor, causal: Tensor) -> Tensor:
        scores = keys.new_zeros((len(queries), len(keys)))
        for first in range(0, self.spec.heads, HEADS_AT_ONCE):
            some = slice(first, first + HEADS_AT_ONCE)
            products = (queries[:, some].float() @ keys.T).relu_()  # (T, h, length)
            scores += (weights[:, None, some] @ products)[:, 0]
        scores.masked_fill_(~causal, -torch.inf)
        return choose(scores, self.spec.chosen) & causal

    @property
    def matrices(self) -> Sequence[Linear]:
        return self.queries, self.keys, self.weights

    @property
    def small_bytes(self) -> int:
        """Bytes of its other tensors."""
        return self.norm.nbytes
