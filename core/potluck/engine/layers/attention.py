"""Attention of one session: a step's queries against what is cached.

There is no batch axis: hidden states are (T, D), and each session's rows are attended to by
themselves. `Step` makes once what the layers of one forward pass share (rotary angles, masks). A mask is made only where it
is needed: for windows shorter than what is cached, for eager attention, and for operators that
would align the first query with the first key. Keys and values are not expanded to the number of
query heads, except in `ExpandedAttention`. A single token takes a path of its own (`_attend_one`),
which is faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.gates import GATE_FUNCTIONS
from potluck.engine.layers.choosing import Choice
from potluck.engine.layers.linear import Linear
from potluck.engine.layers.norms import QkNorm
from potluck.engine.layers.rotary import Rotary, rotate
from potluck.engine.rank_sums.ranks import Exchange
from potluck.model.footprint import CAPPED_QUERIES
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.powers import power


@dataclass(frozen=True, slots=True)
class Span:
    """Which cached tokens the queries of a step see, and which of these each query sees."""

    start: int
    length: int
    # (T, length), True where a query sees a token, or numbers to add to scores. None: all, or causal
    mask: Tensor | None
    is_causal: bool  # a query sees all tokens up to its own; the last query is the last token


class Step:
    """What the layers share of one session's tokens in a forward pass."""

    __slots__ = (
        "_ahead", "_causal", "_chunks", "_device", "_in_windows", "_spans", "angles", "choice", "end", "exchange", "ids",
        "position", "rotaries", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        position: int,
        tokens: int,
        rotaries: Sequence[Rotary],
        device: torch.device,
        ids: Tensor | None = None,
        exchange: Exchange | None = None,
        *,
        lag: int = 0,
        places: Tensor | None = None,
        ahead: Sequence[tuple[int, int]] = (),
        in_windows: bool = False,
    ) -> None:
        """Begin a step of so many tokens.

        Args:
            position: of the first one.
            tokens: how many.
            rotaries: of the session, for each rope.
            device: where masks are made.
            ids: of the tokens, (T,), for layers that look at them.
            exchange: sums what ranks have computed; None: these layers are whole, or are only measured.
            lag: by how much rope's positions are less.
            places: rope's positions in place of these, (3, T), of rows of pictures.
            ahead: where rows of the step begin and end that all see each other, as those of a picture may.
            in_windows: whether they do so in layers with a window alone.
        """
        self.ids, self.rotaries, self.exchange = ids, rotaries, exchange
        self._ahead, self._in_windows = ahead, in_windows
        self.position, self.tokens, self.end = position, tokens, position + tokens
        if places is None:
            self.angles = [rotary.angles(position - lag, tokens) for rotary in rotaries]
        else:
            self.angles = [rotary.angles_at(places) for rotary in rotaries]
        self._device = device
        self._spans: dict[int | None, Span] = {}
        self._chunks: dict[int, Span] = {}
        self._causal: Tensor | None = None
        # What the last layer with an indexer has chosen, if more is cached than the tokens see.
        self.choice: Choice | None = None

    def ahead(self, window: int | None) -> Sequence[tuple[int, int]]:
        """Where rows begin and end that all see each other, in a layer with this window."""
        return () if window is None and self._in_windows else self._ahead

    def span(self, window: int | None) -> Span:
        if (span := self._spans.get(window)) is None:
            span = self._spans[window] = self._make_span(window)
        return span

    def chunk_span(self, size: int) -> Span:
        """The span of queries that see the tokens of their own chunk of so many."""
        if (span := self._chunks.get(size)) is None:
            span = self._chunks[size] = self._make_chunk_span(size)
        return span

    @property
    def causal(self) -> Tensor:
        """(T, end), True where a query sees a token: a causal span as a mask."""
        if self._causal is None:
            self._causal = self._mask(0, None, ())
        return self._causal

    def _make_span(self, window: int | None) -> Span:
        if window is None or window >= self.end:  # no window is shorter than what is cached
            ahead = self.ahead(window)
            mask = self._mask(0, None, ahead) if ahead else None
            return Span(0, self.end, mask, is_causal=self.tokens > 1 and mask is None)
        start = max(0, self.position + 1 - window)
        if self.tokens == 1:
            return Span(start, window, None, is_causal=False)
        return Span(
            start, self.end - start, self._mask(start, window, self._ahead), is_causal=False
        )

    def _make_chunk_span(self, size: int) -> Span:
        start = self.position - self.position % size
        if start == 0 and self.end <= size:
            return self.span(None)
        mask = None
        if self.tokens > 1:
            queries = torch.arange(self.position, self.end, device=self._device)[:, None]
            keys = torch.arange(start, self.end, device=self._device)
            mask = (keys <= queries) & (keys >= queries - queries % size)
        return Span(start, self.end - start, mask, is_causal=False)

    def _mask(self, start: int, window: int | None, ahead: Sequence[tuple[int, int]]) -> Tensor:
        queries = torch.arange(self.position, self.end, device=self._device)[:, None]
        keys = torch.arange(start, self.end, device=self._device)
        mask = keys <= queries
        for begin, end in ahead:
            mask[begin:end] |= keys < self.position + end
        if window is not None:
            mask &= keys > queries - window
        return mask


class Attention:
    """Attention of a layer by torch's operator, on normed hidden states."""

    __slots__ = (
        "_partial", "_rope", "_scale", "head_dim", "num_heads", "num_kv_heads", "output", "qk_norm",
        "qkv", "sinks", "spec", "window",
    )  # fmt: skip

    def __init__(
        self,
        spec: AttentionSpec,
        qkv: Linear,
        qk_norm: QkNorm | None,
        output: Linear,
        sinks: Tensor | None = None,
    ) -> None:
        """Make the attention; `sinks` are (H,), f32, if the specification has some."""
        self.spec, self.sinks = spec, sinks
        self.num_heads, self.num_kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.window = spec.window
        # None is torch's default scale; passing the same number costs a conversion for each token.
        self._scale = None if spec.scale == power(spec.head_dim, -0.5) else spec.scale
        self._rope = spec.rope
        self._partial = spec.rotary_dim if spec.rotary_dim < spec.head_dim else None
        self.qkv, self.qk_norm, self.output = qkv, qk_norm, output

    def __call__(self, x: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """(T, D) → (T, D) for one session: `project`, `mix` and `output`."""
        return self.output(self.mix(self.project(x), cache, step))

    def project(self, x: Tensor) -> Tensor:
        """(T, D) → queries, keys and values (T, (H + 2 Hkv)·K), with gates behind each query or behind all.

        Without values where they are the keys; narrower ones have fewer numbers.
        """
        return self.qkv(x)

    def mix(self, rows: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """What `project` gave → (T, H·K). Keys and values are written from `step.position` on."""
        T, H = step.tokens, self.num_heads
        gates, function = None, torch.sigmoid
        if self.spec.has_gate:
            rows, gates = self._without_gates(rows)
        elif (gate := self.spec.gate) is not None:
            gates, function = self._gates(rows), GATE_FUNCTIONS[gate.function]
            rows = rows[:, : -self.spec.gate_rows]
        if self.spec.value_dim < self.head_dim or self.spec.value_scale != 1.0:
            rows = self._with_whole_values(rows)
        if self.spec.keys_are_values:
            rows = torch.cat([rows, rows[:, self.spec.q_size :]], -1)
        qkv = rows.view(T, H + 2 * self.num_kv_heads, self.head_dim)
        # Queries and keys are rotated together; those that come from another layer are already.
        qk = qkv[:, : H if self.spec.takes is not None else H + self.num_kv_heads]
        is_late = self.spec.qk_norm_after_rope
        if self.qk_norm is not None and not is_late:
            normed = qkv if self.spec.value_norm else qk
            self._norm_heads(normed)
        if self._rope is not None:
            cos, sin, query_factors = step.angles[self._rope]
            self._rotate(qk if self._partial is None else qk[..., : self._partial], cos, sin)
            if query_factors is not None:
                qkv[:, :H].mul_(query_factors)
        if self.qk_norm is not None and is_late:
            self._norm_heads(qk)
        cache.write(step.position, qkv[:, H:])
        mixed = self.attend(qkv[:, :H], cache, step)
        if self.spec.value_dim < self.head_dim:
            mixed = mixed.view(T, H, self.head_dim)[..., : self.spec.value_dim].flatten(1)
        return mixed if gates is None else mixed * function(gates)

    def _gates(self, rows: Tensor) -> Tensor:
        """The gates behind all values, one for each number of the result: (T, H·K)."""
        gates = rows[:, -self.spec.gate_rows :]
        assert self.spec.gate is not None
        return gates.repeat_interleave(self.spec.value_dim, 1) if self.spec.gate.of_heads else gates

    def _with_whole_values(self, rows: Tensor) -> Tensor:
        """The same with scaled values, and zeros behind them that make them as wide as keys."""
        spec = self.spec
        keys, values = rows.split((spec.q_size + spec.kv_size, spec.values_size), 1)
        values = (values * spec.value_scale).view(len(rows), spec.kv_heads, spec.value_dim)
        padded = F.pad(values, (0, spec.head_dim - spec.value_dim))
        return torch.cat([keys, padded.flatten(1)], 1)

    def _rotate(self, x: Tensor, cosines: Tensor, sines: Tensor) -> None:
        """Rotate heads (T, H, dim) in place."""
        rotate(x, cosines, sines)

    def _norm_heads(self, x: Tensor) -> None:
        """Norm heads (T, H, K) in place."""
        assert self.qk_norm is not None
        x.copy_(self.qk_norm(x))

    def _without_gates(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values alone, and the gates (T, H·K)."""
        T, size = len(rows), self.spec.q_size + self.spec.gate_size
        both = rows[:, :size].view(T, self.num_heads, 2, self.head_dim)
        queries, gates = both.unbind(2)
        return torch.cat([queries.flatten(1), rows[:, size:]], 1), gates.flatten(1)

    def attend(self, q: Tensor, cache: LayerCache, step: Step) -> Tensor:
        """Attention of the queries (T, H, K) over the cache, up to their own positions: (T, H·K)."""
        window = self.window
        if window is not None and self.spec.in_chunks:
            span = step.chunk_span(window)
        else:
            span = step.span(window)
        if step.tokens == 1:
            return self._attend_one(q, cache, span)
        return self._attend_many(q, cache, span, self._mask(step, span))

    @property
    def matrices(self) -> tuple[Linear, ...]:
        return self.qkv, self.output

    @property
    def nbytes(self) -> int:
        norm = self.qk_norm.nbytes if self.qk_norm else 0
        sinks = 0 if self.sinks is None else self.sinks.nbytes
        return self.qkv.nbytes + norm + sinks + self.output.nbytes

    def _attend_one(self, q: Tensor, cache: LayerCache, span: Span) -> Tensor:
        """One query per head; the heads that share a key head are computed as rows of queries of that head.

        Measured against `enable_gqa` on one core, 900 cached tokens, 32 heads on 8: 163 µs instead
        of 262 in f32, 227 instead of 2551 in bf16; grouped `matmul` takes 172 and 413.
        """
        G = self.num_heads // self.num_kv_heads
        q = q.view(1, self.num_kv_heads, G, self.head_dim)
        keys, values = cache.read(span.start, span.length, q.dtype)
        out = F.scaled_dot_product_attention(  # (1, Hkv, G, K)
            q, keys, values, attn_mask=span.mask, scale=self._scale
        )
        return out.view(1, self.num_heads * self.head_dim)

    def _mask(self, step: Step, span: Span) -> Tensor | None:
        """The mask for torch's operator; None: it needs none, and is causal if the span is."""
        # `is_causal` of torch aligns the first query with the first key.
        return step.causal if span.is_causal and step.position > 0 else span.mask

    def _attend_many(self, q: Tensor, cache: LayerCache, span: Span, mask: Tensor | None) -> Tensor:
        q = q.transpose(0, 1)[None]  # (1, H, T, K)
        keys, values = cache.read(span.start, span.length, q.dtype)  # (1, Hkv, length, K)
        if self._expands(mask) and (group := self.num_heads // self.num_kv_heads) > 1:
            keys, values = (each.repeat_interleave(group, 1) for each in (keys, values))
        out = F.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
            enable_gqa=keys.shape[1] != self.num_heads,
        )
        return out.transpose(1, 2).reshape(-1, self.num_heads * self.head_dim)

    def _expands(self, mask: Tensor | None) -> bool:
        """Whether keys and values are repeated for every head of queries, for many tokens."""
        return False


class ExpandedAttention(Attention):
    """Attention that repeats keys and values for every head of queries, for many tokens."""

    __slots__ = ()

    def _expands(self, mask: Tensor | None) -> bool:
        return True


class EagerAttention(Attention):
    """Attention as products and a softmax, which every device has. Only this one has softcaps and sinks.

    Scores of some queries at a time are held in memory. With a softcap they become
    softcap · tanh(score / softcap) (Gemma 2). A sink is a score of its head beside those of the tokens, and adds
    nothing to the result (gpt-oss).
    """

    __slots__ = ("_queries",)

    def __init__(
        self,
        spec: AttentionSpec,
        qkv: Linear,
        qk_norm: QkNorm | None,
        output: Linear,
        sinks: Tensor | None = None,
        *,
        queries: int = CAPPED_QUERIES,
    ) -> None:
        """Make attention that holds the scores of at most so many queries at a time."""
        super().__init__(spec, qkv, qk_norm, output, sinks)
        self._queries = queries

    def _attend_one(self, q: Tensor, cache: LayerCache, span: Span) -> Tensor:
        keys, values = cache.read(span.start, span.length, q.dtype)
        return self._attend(q, keys[0], values[0], span.mask)

    def _mask(self, step: Step, span: Span) -> Tensor | None:
        return step.causal if span.is_causal else span.mask

    def _attend_many(self, q: Tensor, cache: LayerCache, span: Span, mask: Tensor | None) -> Tensor:
        assert mask is not None  # with many queries, the first does not see the last token
        keys, values = cache.read(span.start, span.length, q.dtype)
        parts = zip(q.split(self._queries), mask.split(self._queries), strict=True)
        return torch.cat([self._attend(some, keys[0], values[0], seen) for some, seen in parts])

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        T, H, K = q.shape
        Hkv = self.num_kv_heads
        rows = q.view(T, Hkv, H // Hkv, K).permute(1, 2, 0, 3).reshape(Hkv, -1, K)  # (Hkv, G·T, K)
        scores = self._scores((rows @ keys.transpose(1, 2)).float())  # (Hkv, G·T, length)
        if mask is not None:
            seen = scores.view(Hkv, -1, T, keys.shape[1])
            seen.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else seen.add_(mask)
        if self.sinks is not None:
            sinks = self.sinks.view(Hkv, -1, 1).repeat_interleave(T, 1)  # (Hkv, G·T, 1)
            scores = torch.cat((scores, sinks), -1)
        powers = scores.softmax(-1)[..., : keys.shape[1]]
        out = powers.to(values.dtype) @ values  # (Hkv, G·T, K)
        return out.view(H, T, K).transpose(0, 1).reshape(T, H * K)

    def _scores(self, products: Tensor) -> Tensor:
        """Scale and softcap the products of queries and keys, in place."""
        scale, softcap = self.spec.scale, self.spec.softcap
        if softcap is None:
            return products.mul_(scale)
        return products.mul_(scale / softcap).tanh_().mul_(softcap)
