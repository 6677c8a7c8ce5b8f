"""Latent attention is the same absorbed and expanded, in torch and in generated kernels."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.caches.new_cache import new_cache
from potluck.engine.device import CacheForm
from potluck.engine.generated.latent import GeneratedLatentAttention, has_latent_kernels
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.layers.attention import Step
from potluck.engine.layers.indexer import Indexer
from potluck.engine.layers.latent import LatentAttention
from potluck.engine.layers.linear import FloatLinear, PackedLinear
from potluck.engine.layers.norms import BiasedLayerNorm, RmsNorm
from potluck.engine.layers.rotary import Rotary
from potluck.model.caches import CacheSizes
from potluck.model.formats import INT8
from potluck.model.mixing.indexer import IndexerSpec
from potluck.model.mixing.latent import LatentSpec
from potluck.model.mixing.rope import QueryScale, Rope

CPU = torch.device("cpu")
KERNELS = GeneratedKernels(host_paths()[0])
HEADS, RANK, PLAIN, ROTARY, VALUE, HIDDEN, QUERY = 5, 32, 24, 8, 16, 48, 40
CACHED, TOKENS = 270, 60  # more than a panel of cached tokens
Make = Callable[..., LatentAttention]


# Fewer than are cached, and more than a panel
SPARSE = IndexerSpec(
    hidden_size=HIDDEN, query_rank=QUERY, heads=11, head_dim=20, rotary_dim=ROTARY, chosen=290,
    is_paired=False,
)  # fmt: skip


def make_spec(**changes: Any) -> LatentSpec:
    sizes: dict[str, Any] = {
        "query_rank": None,
        "rank": RANK,
        "plain_dim": PLAIN,
        "rotary_dim": ROTARY,
        "value_dim": VALUE,
    }
    return LatentSpec(hidden_size=HIDDEN, heads=HEADS, rope=0, scale=0.2, **(sizes | changes))


def make_indexer(spec: IndexerSpec) -> Indexer:
    queries, keys, weights = (plain(one.rows[0], one.width) for one in spec.projections)
    norm = BiasedLayerNorm(
        torch.stack([torch.rand(spec.head_dim) + 0.5, torch.randn(spec.head_dim) / 9]), 1e-6
    )
    return Indexer(spec, queries, keys, norm, weights)


def plain(rows: int, width: int) -> FloatLinear:
    return FloatLinear(torch.randn(rows, width) / width**0.5, None, KERNELS.multiply_plain)


def make(kind: Make, spec: LatentSpec, *, is_packed: bool = False) -> LatentAttention:
    torch.manual_seed(0)
    ups = [plain(up.rows[0], up.width) for up in spec.ups]
    if is_packed:
        ups = [PackedLinear(KERNELS.pack(up.weight, INT8), None, KERNELS) for up in ups]
    queries = None
    if spec.queries is not None:
        queries = RmsNorm(torch.rand(QUERY) + 0.5, 1e-6), plain(spec.q_size, QUERY)
    return kind(
        spec,
        inputs=plain(sum(spec.input.rows), HIDDEN),
        queries=queries,
        latent_norm=RmsNorm(torch.rand(spec.rank) + 0.5, 1e-6),
        key_up=ups[0],
        value_up=ups[1],
        output=plain(HIDDEN, spec.output.width),
        indexer=None if spec.indexer is None else make_indexer(spec.indexer),
    )


def generated(dtype: torch.dtype) -> Make:
    return partial(GeneratedLatentAttention, kernels=KERNELS, cache=CacheForm(dtype))


def run(
    attention: LatentAttention, steps: list[int], dtype: torch.dtype = torch.float32
) -> tuple[Tensor, LayerCache]:
    rotaries = [
        Rotary(
            Rope(dim=ROTARY, theta=100.0, query_scale=QueryScale(beta=0.1, original_max_position=100)),
            CACHED + TOKENS, torch.float32, CPU,
        )
    ]  # fmt: skip
    number_bytes = {torch.float32: 4, torch.bfloat16: 2, torch.int8: 1}[dtype]
    cache = new_cache(attention.spec.cache(CacheSizes(number_bytes=number_bytes)), dtype, CPU)
    cache.resize(CACHED + TOKENS, 0)
    x = torch.randn(CACHED + TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    out, position = [], 0
    with torch.inference_mode():
        for tokens in [CACHED, *steps]:
            step = Step(position, tokens, rotaries, CPU)
            rows = attention.project(x[position : position + tokens])
            out.append(attention.mix(rows, cache, step))
            position += tokens
    return torch.cat(out), cache


def test_absorbed_and_expanded_attention_are_the_same() -> None:
    attention = make(LatentAttention, make_spec())
    assert 1 < attention.spec.expands_from <= TOKENS

    expanded, _ = run(attention, [TOKENS])
    absorbed, cache = run(attention, [1] * TOKENS)

    torch.testing.assert_close(absorbed, expanded, atol=1e-5, rtol=1e-4)
    assert cache.both.shape == (1, 1, CACHED + TOKENS, RANK + ROTARY)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.int8, 2e-2)]
)
@pytest.mark.parametrize("sparse", [None, SPARSE], ids=["all", "chosen"])
def test_generated_attention_is_that_of_torch(
    dtype: torch.dtype, tolerance: float, sparse: IndexerSpec | None
) -> None:
    spec = make_spec(indexer=sparse, query_rank=sparse and QUERY)

    ours, mine = run(make(generated(dtype), spec), [3, 1, TOKENS - 4], dtype)
    theirs, other = run(make(LatentAttention, spec), [3, 1, TOKENS - 4], dtype)

    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    assert mine.both.shape == other.both.shape
    if dtype == torch.int8:  # sums in another order may round to the next integer
        assert (mine.both[..., :RANK].int() - other.both[..., :RANK].int()).abs().max() <= 1


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "sparse"), [(torch.float32, None), (torch.int8, None), (torch.int8, SPARSE)]
)
def test_a_token_has_the_same_bits_alone_and_among_others(
    dtype: torch.dtype, sparse: IndexerSpec | None, is_packed: bool
) -> None:
    spec = make_spec(indexer=sparse, query_rank=sparse and QUERY)
    attention = make(generated(dtype), spec, is_packed=is_packed)

    alone, one = run(attention, [1] * TOKENS, dtype)
    together, other = run(attention, [7, TOKENS - 7], dtype)

    assert torch.equal(alone, together)
    assert torch.equal(one.both, other.both)


def test_matrices_of_8_bits_change_little() -> None:
    exact, _ = run(make(generated(torch.float32), make_spec()), [1])
    packed, _ = run(make(generated(torch.float32), make_spec(), is_packed=True), [1])

    assert 0 < (packed - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("changes", [{"rank": 24}, {"value_dim": 24}])
def test_torch_computes_sizes_in_which_a_vector_would_belong_to_two_parts(
    changes: dict[str, int],
) -> None:
    assert has_latent_kernels(make_spec())
    assert not has_latent_kernels(make_spec(**changes))
