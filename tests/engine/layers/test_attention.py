"""Attention of a query to cached tokens: which ones it sees, and the softcap of its scores."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Attention, EagerAttention, Step
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.products import Products
from potluck.engine.layers.rotary import Rotary
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.mixing.rope import Rope

CPU = torch.device("cpu")
D, H, HKV, K = 12, 4, 2, 8


def looks_at(position: int, tokens: int, window: int | None) -> Tensor:
    """Return whether each of these queries looks at each of the cached tokens."""
    step = Step(position, tokens, [], CPU)
    span = step.span(window)
    seen = torch.zeros((tokens, position + tokens), dtype=torch.bool)
    inside = torch.ones((tokens, span.length), dtype=torch.bool)
    if span.mask is not None:
        inside = span.mask
    elif span.is_causal:
        inside = step.causal
    seen[:, span.start : span.start + span.length] = inside
    return seen


@pytest.mark.parametrize("window", [None, 1, 3, 7, 100])
@pytest.mark.parametrize("tokens", [1, 2, 6])
@pytest.mark.parametrize("position", [0, 1, 5, 12])
def test_a_query_looks_at_what_is_before_it_and_in_its_window(
    position: int, tokens: int, window: int | None
) -> None:
    seen = looks_at(position, tokens, window)

    for query in range(tokens):
        here = position + query
        first = 0 if window is None else max(0, here - window + 1)
        expected = [first <= key <= here for key in range(position + tokens)]
        assert seen[query].tolist() == expected


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_a_single_token_needs_no_mask(window: int | None) -> None:
    for position in range(8):
        span = Step(position, 1, [], CPU).span(window)

        assert span.mask is None
        assert not span.is_causal
        assert span.length == min(position + 1, window or position + 1)


def test_a_mask_is_made_once_and_only_for_windows_that_end_within_what_is_cached() -> None:
    step = Step(5, 4, [], CPU)

    assert step.span(None).mask is None
    assert step.span(9).mask is None
    assert step.span(8).mask is not None
    assert step.span(8) is step.span(8)
    assert step.causal is step.causal


def make_spec(
    heads: int, kv_heads: int, size: int, *, window: int | None, rope: int | None = None
) -> AttentionSpec:
    return AttentionSpec(
        hidden_size=D, heads=heads, kv_heads=kv_heads, head_dim=size, rotary_dim=size,
        window=window, rope=rope, scale=0.3,
    )  # fmt: skip


def linear(rows: int, width: int) -> FloatLinear:
    return FloatLinear(torch.randn(rows, width), None, Products())


def parts(window: int | None) -> tuple[AttentionSpec, FloatLinear, None, FloatLinear]:
    spec = make_spec(H, HKV, K, window=window, rope=0)
    return spec, linear((H + 2 * HKV) * K, D), None, linear(D, H * K)


def run(layer: Attention, x: Tensor, sizes: list[int]) -> Tensor:
    cache = LayerCache(layer.num_kv_heads, layer.head_dim, torch.float32, CPU)
    cache.resize(len(x), 0)
    rotary = Rotary(Rope(dim=K), len(x), torch.float32, CPU)
    outputs: list[Tensor] = []
    position = 0
    for piece in x.split(sizes):
        outputs.append(layer(piece, cache, Step(position, len(piece), [rotary], CPU)))
        position += len(piece)
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [None, 5])
def test_a_cap_that_is_never_reached_changes_nothing(window: int | None) -> None:
    spec, qkv, norm, output = parts(window)
    x = torch.randn(20, D) * 0.1

    plain = run(Attention(spec, qkv, norm, output), x, [12, 1, 7])
    softcapped = replace(spec, softcap=1e4)
    capped = run(EagerAttention(softcapped, qkv, norm, output), x, [12, 1, 7])

    torch.testing.assert_close(capped, plain, rtol=1e-4, atol=1e-5)


def plain(
    spec: AttentionSpec,
    qkv: FloatLinear,
    output: FloatLinear,
    x: Tensor,
    cap: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute all queries and all keys at once, in 64 bits."""
    T, shared = len(x), spec.heads // spec.kv_heads
    values = (x.double() @ qkv.weight.double().t()).view(T, -1, spec.head_dim)
    q, k, v = values.split([spec.heads, spec.kv_heads, spec.kv_heads], 1)
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = torch.einsum("thk,shk->hts", q, k) * spec.scale
    scores = cap * torch.tanh(scores / cap)
    back = torch.arange(T)[:, None] - torch.arange(T)
    seen = (back >= 0) & (back < (spec.window or T))
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks.double().view(-1, 1, 1).expand(-1, T, 1)), -1)
    weights = scores.softmax(-1)[..., :T]
    return torch.einsum("hts,shk->thk", weights, v).reshape(T, -1) @ output.weight.double().t()


@pytest.mark.parametrize(("queries", "keys", "size"), [(1, 1, 3), (3, 1, 8), (4, 4, 5), (6, 2, 7)])
@pytest.mark.parametrize("window", [None, 1, 6, 17, 23])
@pytest.mark.parametrize("sizes", [[23], [1] * 23, [7, 1, 9, 6], [22, 1], [1, 22]], ids=str)
def test_chunks_find_what_all_tokens_at_once_find(
    queries: int, keys: int, size: int, window: int | None, sizes: list[int]
) -> None:
    spec = make_spec(queries, keys, size, window=window)
    qkv, output = linear((queries + 2 * keys) * size, D), linear(D, queries * size)
    x = torch.randn(23, D)

    found = run(Attention(spec, qkv, None, output), x, sizes)
    capped = run(EagerAttention(replace(spec, softcap=2.0), qkv, None, output), x, sizes)

    expected = plain(spec, qkv, output, x, 1e9).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    expected = plain(spec, qkv, output, x, 2.0).float()
    torch.testing.assert_close(capped, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("sizes", [[23], [1] * 23, [7, 1, 9, 6]], ids=str)
def test_a_sink_takes_its_part_of_the_softmax(window: int | None, sizes: list[int]) -> None:
    """As a token would whose value is zero, and whose product with each query of a head is the same."""
    spec = make_spec(4, 2, 6, window=window)
    qkv, output, sinks = linear(48, D), linear(D, 24), torch.randn(4)
    x = torch.randn(23, D)

    layer = EagerAttention(replace(spec, has_sinks=True), qkv, None, output, sinks, queries=5)
    found = run(layer, x, sizes)

    expected = plain(spec, qkv, output, x, 1e9, sinks).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [[20], [12, 1, 7]], ids=str)
def test_many_queries_are_capped_in_parts(sizes: list[int]) -> None:
    spec, qkv, norm, output = parts(5)
    capped = replace(spec, softcap=2.0)
    x = torch.randn(20, D)

    found = run(EagerAttention(capped, qkv, norm, output, queries=3), x, sizes)

    whole = run(EagerAttention(capped, qkv, norm, output), x, [20])
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)
