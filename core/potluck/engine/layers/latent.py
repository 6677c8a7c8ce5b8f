"""Latent attention (MLA) in torch: see `LatentSpec`.

A head's key is W_K c, of the cached latent c, and its value W_V c. So a score is q · W_K c = (W_Kᵀ q) · c, and
the result W_V Σ p c: a few queries are *absorbed*, that is multiplied with W_Kᵀ once, and then attend to the cached
rows themselves, which all heads share. For many queries, keys and values are *expanded*, some heads at a time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.indexer import Indexer, Turned
from potluck.engine.layers.linear import FloatLinear, Linear
from potluck.engine.layers.norms import RmsNorm
from potluck.engine.layers.rotary import rotate
from potluck.model.footprint import HEADS_AT_ONCE
from potluck.model.mixing.latent import LatentSpec


class LatentAttention:
    """Latent attention on normed hidden states, by products and a softmax, which every device has."""

    __slots__ = (
        "indexer", "input", "key_up", "latent_norm", "output", "queries", "query_norm", "spec", "value_up",
    )  # fmt: skip

    def __init__(
        self,
        spec: LatentSpec,
        *,
        inputs: Linear,
        queries: tuple[RmsNorm, Linear] | None,
        latent_norm: RmsNorm,
        key_up: Linear,
        value_up: Linear,
        output: Linear,
        indexer: Indexer | None = None,
    ) -> None:
        """Make it of its parts.

        Args:
            spec: of the layer.
            inputs: see `LatentSpec.input`.
            queries: the norm and the matrix of the queries' latent, if they have one.
            latent_norm: of the latent of keys and values.
            key_up: (H·rank, plain_dim), of each head W_Kᵀ.
            value_up: (H·value_dim, rank), of each head W_V.
            output: see `LatentSpec.output`.
            indexer: if the specification has one.
        """
        self.spec, self.input, self.output, self.indexer = spec, inputs, output, indexer
        self.query_norm, self.queries = queries or (None, None)
        self.latent_norm, self.key_up, self.value_up = latent_norm, key_up, value_up

    def project(self, x: Tensor) -> Tensor:
        """(T, D) → queries, what becomes the cached rows, and what the indexer makes of the tokens.

        That is (T, H·query_dim + row), and as many as `IndexerSpec.row` says.
        """
        rows = self.input(x)
        if self.queries is None or self.query_norm is None:
            return rows
        latents, row = rows.split((rows.shape[1] - self.spec.row, self.spec.row), -1)
        latents = self.query_norm(latents)
        parts = self.queries(latents), row
        if self.indexer is None:
            return torch.cat(parts, -1)
        return torch.cat((*parts, *self.indexer.project(x, latents)), -1)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, H·value_dim). The latents and shared keys are cached."""
        spec, own = self.spec, self.spec.q_size + self.spec.row
        index = None
        if self.indexer is not None:
            index = self.indexer.turn(rows[:, own:], step.angles[spec.rope or 0])
            rows = rows[:, :own]
        plain, turned = self._cache_rows(rows, None if index is None else index.keys, cache, step)
        if self.indexer is not None:
            self.indexer.note(cache, step)
        keys, values = cache.read(0, step.end, rows.dtype)  # (1, 1, length, row), (…, rank)
        cached, mask = (keys[0, 0], values[0, 0]), step.causal if step.tokens > 1 else None
        if spec.sees is not None and step.end > spec.sees:
            cached, mask = self._visible(index, cached, cache, step)
        attend = self._absorbed if step.tokens < spec.expands_from else self._expanded
        out = attend(plain, turned, cached, mask)
        return out.transpose(0, 1).reshape(step.tokens, -1)

    def _visible(
        self, index: Turned | None, cached: tuple[Tensor, Tensor], cache: LayerCache, step: Step
    ) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """The rows that a single token sees; or all, and a mask of what each of several tokens sees."""
        if self.indexer is not None and index is not None:
            step.choice = self.indexer.choose(index, cache, step)
        assert step.choice is not None
        if step.tokens > 1:
            return cached, step.choice.mask(step.causal)
        places = step.choice.places[0].to(cached[0].device, torch.int64)
        return (cached[0][places], cached[1][places]), None

    @property
    def matrices(self) -> Sequence[Linear]:
        queries = () if self.queries is None else (self.queries,)
        indexer = () if self.indexer is None else self.indexer.matrices
        return self.input, *queries, self.key_up, self.value_up, self.output, *indexer

    @property
    def nbytes(self) -> int:
        norms = self.latent_norm.nbytes + (self.query_norm.nbytes if self.query_norm else 0)
        norms += 0 if self.indexer is None else self.indexer.small_bytes
        return norms + sum(matrix.nbytes for matrix in self.matrices)

    def _cache_rows(
        self, rows: Tensor, index: Tensor | None, cache: LayerCache, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Cache the tokens' rows; return their queries without and with rope, (T, H, …)."""
        spec, T = self.spec, step.tokens
        q, latents, keys = rows.split((spec.q_size, spec.rank, spec.rotary_dim), -1)
        plain, turned = q.view(T, spec.heads, -1).split((spec.plain_dim, spec.rotary_dim), -1)
        # All heads' queries and the shared key are turned together.
        turned = torch.cat((turned, keys[:, None]), 1)  # (T, H + 1, rotary_dim)
        assert spec.rope is not None
        cos, sin, query_factors = step.angles[spec.rope]
        rotate(turned, cos, sin)
        turned, keys = turned[:, :-1], turned[:, -1]
        parts = [self.latent_norm(latents), keys, *(() if index is None else (index,))]
        cache.write(step.position, torch.cat(parts, -1))
        if query_factors is None:
            return plain, turned
        return plain * query_factors, turned * query_factors

    def _absorbed(
        self, plain: Tensor, turned: Tensor, cached: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        """All heads attend to the same cached rows: (H, T, value_dim)."""
        keys, values = cached
        H, T = self.spec.heads, len(plain)
        key_up, value_up = self._ups()
        latents = plain.transpose(0, 1) @ key_up.transpose(1, 2)  # (H, T, rank)
        q = torch.cat((latents, turned.transpose(0, 1)), -1).view(H * T, -1)
        mixed = self._attend(q, keys, values, None if mask is None else mask.repeat(H, 1))
        return mixed.view(H, T, -1) @ value_up.transpose(1, 2)

    def _expanded(
        self, plain: Tensor, turned: Tensor, cached: tuple[Tensor, Tensor], mask: Tensor | None
    ) -> Tensor:
        """Each head has keys and values of its own: (H, T, value_dim)."""
        rows, latents = cached
        shared = rows[:, self.spec.rank :]
        q = torch.cat((plain, turned), -1).transpose(0, 1)  # (H, T, query_dim)
        parts = [each.split(HEADS_AT_ONCE) for each in (q, *self._ups())]
        out: list[Tensor] = []
        for queries, key_up, value_up in zip(*parts, strict=True):
            keys = torch.cat((latents @ key_up, shared.expand(len(queries), -1, -1)), -1)
            values = latents @ value_up.transpose(1, 2)  # (h, length, value_dim)
            out.append(self._attend(queries, keys, values, mask))
        return torch.cat(out)

    def _ups(self) -> tuple[Tensor, Tensor]:
        """The matrices of each head, (H, rank, plain_dim) and (H, value_dim, rank)."""
        key_up, value_up = self.key_up, self.value_up
        assert isinstance(key_up, FloatLinear)
        assert isinstance(value_up, FloatLinear)
        H = self.spec.heads
        return (
            key_up.weight.view(H, self.spec.rank, -1),
            value_up.weight.view(H, self.spec.value_dim, -1),
        )

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        scores = (q @ keys.transpose(-1, -2)).float().mul_(self.spec.scale)
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        return scores.softmax(-1).to(values.dtype) @ values
