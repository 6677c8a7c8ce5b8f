"""Generated attention is torch's, whatever is cached before and however tokens come."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.device import CacheForm
from potluck.engine.generated.attention import GeneratedAttention
from potluck.engine.kernels.called.generated import GeneratedKernels, host_paths
from potluck.engine.layers.attention import Attention, EagerAttention, Step
from potluck.engine.layers.linear import PackedLinear
from potluck.engine.layers.norms import HeadNorm, ProjectionNorm
from potluck.engine.layers.rotary import Rotary
from potluck.model.families.facts import QkNormKind
from potluck.model.formats import INT8
from potluck.model.mixing.mixers import AttentionSpec
from potluck.model.mixing.rope import Rope

CPU = torch.device("cpu")
HIDDEN, QUERIES, KEYS, SIZE = 64, 4, 2, 16
KERNELS = GeneratedKernels(host_paths()[0])


def packed(rows: int, width: int) -> PackedLinear:
    return PackedLinear(
        KERNELS.pack(torch.randn(rows, width) / 8, INT8), torch.randn(rows), KERNELS
    )


def make_spec(
    *,
    window: int | None = None,
    rope: int | None = 0,
    rotary_dim: int = SIZE,
    qk_norm: QkNormKind | None = None,
    softcap: float | None = None,
) -> AttentionSpec:
    return AttentionSpec(
        hidden_size=HIDDEN, heads=QUERIES, kv_heads=KEYS, head_dim=SIZE, rotary_dim=rotary_dim,
        window=window, rope=rope, scale=0.3, softcap=softcap, qk_norm=qk_norm, qk_norm_eps=1e-5,
    )  # fmt: skip


def make_norm(kind: str | None) -> HeadNorm | ProjectionNorm | None:
    match kind:
        case "head":
            norm = HeadNorm(torch.rand(2, SIZE) + 0.5, (QUERIES, KEYS), 1e-5)
            norm.spread()
            return norm
        case "projection":
            sizes = (QUERIES * SIZE, KEYS * SIZE)
            return ProjectionNorm(torch.rand(sum(sizes)) + 0.5, sizes, 1e-5)
        case _:
            return None


def run(attention: Attention, x: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    cache = LayerCache(KEYS, SIZE, dtype, CPU)
    cache.resize(64, 0)
    rotary = Rotary(Rope(dim=attention.spec.rotary_dim, theta=100.0), 64, torch.float32, CPU)
    outputs: list[Tensor] = []
    position = 0
    for some in x.split(list(sizes)):
        outputs.append(attention(some, cache, Step(position, len(some), [rotary], CPU)))
        position += len(some)
    return torch.cat(outputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (17, 1, 22)], ids=["chunk", "single", "mixed"])
@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(window=7, rotary_dim=8, qk_norm="head"),
        make_spec(rope=None, qk_norm="projection", softcap=2.0),
    ],
    ids=["plain", "window, partial rotary, norm", "no rotary, norm of projections, softcap"],
)
def test_chunks_and_tokens_are_those_of_torch(
    spec: AttentionSpec, sizes: Sequence[int], dtype: torch.dtype
) -> None:
    qkv, output = packed((QUERIES + 2 * KEYS) * SIZE, HIDDEN), packed(HIDDEN, QUERIES * SIZE)
    qk_norm, x = make_norm(spec.qk_norm), torch.randn(40, HIDDEN)
    kind = Attention if spec.softcap is None else EagerAttention
    plain = kind(spec, qkv, qk_norm, output)

    generated = GeneratedAttention(
        spec, qkv, qk_norm, output, kernels=KERNELS, cache=CacheForm(dtype, beside_packed=True)
    )

    assert generated.nbytes == plain.nbytes
    got, expected = run(generated, x, sizes, dtype), run(plain, x, (40,), dtype)
    # Roundings that fall to the other side: of the cache, and of what the last product reads.
    assert (got - expected).norm() < 0.01 * expected.norm()
