"""Generated attention is torch's, whatever is cached before and however tokens come."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from potluck.engine.attention import Attention, Heads, SoftCappedAttention, Step
from potluck.engine.generated_attention import GeneratedAttention
from potluck.engine.kernels.generated import KINDS, GeneratedKernels, host_paths
from potluck.engine.kvcache import LayerCache
from potluck.engine.linear import PackedLinear
from potluck.engine.norms import HeadNorm, ProjectionNorm
from potluck.engine.rotary import Rotary
from potluck.model.formats import INT8
from potluck.model.rope import Rope

CPU = torch.device("cpu")
HIDDEN, QUERIES, KEYS, SIZE = 64, 4, 2, 16
KERNELS = GeneratedKernels(host_paths()[0])


def packed(rows: int, width: int) -> PackedLinear:
    return PackedLinear(
        KERNELS.pack(torch.randn(rows, width) / 8, INT8), torch.randn(rows), KERNELS
    )


def make_heads(*, window: int | None = None, rope: int | None = 0, rotary_dim: int = SIZE) -> Heads:
    return Heads(
        queries=QUERIES, keys=KEYS, size=SIZE, window=window, scale=0.3, rope=rope,
        rotary_dim=rotary_dim,
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
    rotary = Rotary(Rope(dim=attention.rotary_dim, theta=100.0), 64, torch.float32, CPU)
    outputs: list[Tensor] = []
    position = 0
    for some in x.split(list(sizes)):
        outputs.append(attention(some, cache, Step(position, len(some), [rotary], CPU)))
        position += len(some)
    return torch.cat(outputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (17, 1, 22)], ids=["chunk", "single", "mixed"])
@pytest.mark.parametrize(
    ("heads", "norm", "softcap"),
    [
        (make_heads(), None, None),
        (make_heads(window=7, rotary_dim=8), "head", None),
        (make_heads(rope=None), "projection", 2.0),
    ],
    ids=["plain", "window, partial rotary, norm", "no rotary, norm of projections, soft cap"],
)
def test_chunks_and_tokens_are_those_of_torch(
    heads: Heads, norm: str | None, softcap: float | None, sizes: Sequence[int], dtype: torch.dtype
) -> None:
    qkv, output = packed((QUERIES + 2 * KEYS) * SIZE, HIDDEN), packed(HIDDEN, QUERIES * SIZE)
    qk_norm, x = make_norm(norm), torch.randn(40, HIDDEN)
    plain = (
        Attention(heads, qkv, qk_norm, output)
        if softcap is None
        else SoftCappedAttention(heads, qkv, qk_norm, output, cap=softcap)
    )

    generated = GeneratedAttention(
        heads, qkv, qk_norm, output, kernels=KERNELS, softcap=softcap, cache_kind=KINDS[dtype]
    )

    assert generated.nbytes == plain.nbytes
    got, expected = run(generated, x, sizes, dtype), run(plain, x, (40,), dtype)
    # Roundings that fall to the other side: of the cache, and of what the last product reads.
    assert (got - expected).norm() < 0.01 * expected.norm()
