"""LayerOps of plain operators compute what torch's own do."""

import dataclasses

import pytest
import torch

from potluck.engine.accelerator import aligned, ops
from potluck.engine.accelerator.aligned import AlignedAttention
from potluck.engine.accelerator.ops import (
    LayerOps,
    choose_ops,
)
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Attention, EagerAttention, ExpandedAttention, Step
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.norms import HeadNorm, ProjectionNorm, RmsNorm, plain_norm
from potluck.engine.layers.products import Products
from potluck.model.mixing.mixers import AttentionSpec

CPU = torch.device("cpu")
SPEC = AttentionSpec(
    hidden_size=32, heads=6, kv_heads=2, head_dim=8, rotary_dim=8, window=5, scale=0.3
)


def test_a_cpu_has_all_of_torchs_own() -> None:
    assert choose_ops(CPU, torch.bfloat16) == LayerOps()


def test_a_device_where_nothing_is_right_gets_plain_ones() -> None:
    chosen = choose_ops(torch.device("meta"), torch.float32)

    assert chosen == LayerOps(attention=EagerAttention, norm=plain_norm)


@pytest.mark.parametrize(
    ("has_flash", "wrong", "chosen"),
    [
        (True, (), AlignedAttention),
        (True, (AlignedAttention,), ExpandedAttention),
        (False, (), ExpandedAttention),  # else all scores would be in memory at once
        (False, (ExpandedAttention,), EagerAttention),
    ],
)
def test_the_attention_of_cuda_needs_no_scores_in_memory_where_it_can_do_without(
    monkeypatch: pytest.MonkeyPatch,
    has_flash: bool,
    wrong: tuple[type[Attention], ...],
    chosen: type[Attention],
) -> None:
    monkeypatch.setattr(aligned, "has_flash", lambda *_: has_flash)
    monkeypatch.setattr(ops, "attends", lambda kind, *_: kind not in wrong)
    monkeypatch.setattr(ops, "norms_work", lambda _: True)

    assert choose_ops(torch.device("cuda", 0), torch.float16) == LayerOps(attention=chosen)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 9])
def test_norms_are_the_same(tokens: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(tokens, 40).to(dtype), torch.randn(40)
    qk, per_head = torch.randn(tokens, 8, 8).to(dtype)[:, :5], torch.randn(2, 8)

    heads = HeadNorm(per_head, (3, 2), 1e-5), HeadNorm(per_head, (3, 2), 1e-5, plain_norm)
    for norm in heads:
        norm.spread()
    normed = [
        (RmsNorm(weight, 1e-5)(x), RmsNorm(weight, 1e-5, plain_norm)(x)),
        (heads[0](qk), heads[1](qk)),
        (
            ProjectionNorm(weight, (24, 16), 1e-5)(qk),
            ProjectionNorm(weight, (24, 16), 1e-5, plain_norm)(qk),
        ),
    ]

    for theirs, ours in normed:
        assert ours.dtype == theirs.dtype
        assert torch.allclose(
            ours.float(), theirs.float(), rtol=0.01 if dtype != torch.float32 else 1e-5
        )


@pytest.mark.parametrize("kind", [ExpandedAttention, AlignedAttention, EagerAttention])
@pytest.mark.parametrize("window", [5, None])
def test_attention_of_other_kinds_is_the_same(kind: type[Attention], window: int | None) -> None:
    spec = dataclasses.replace(SPEC, window=window)
    weights = torch.randn(10 * 8, 32), torch.randn(32, 48)
    qkv, output = (FloatLinear(weight, None, Products()) for weight in weights)
    attentions = [each(spec, qkv, None, output) for each in (Attention, kind)]
    caches = [LayerCache(2, 8, torch.float32, CPU) for _ in attentions]

    position = 0
    for tokens in (7, 4, 1):  # causal within the window or not, and one token
        x = torch.randn(tokens, 32)
        step = Step(position, tokens, (), CPU)
        outputs = []
        for attention, cache in zip(attentions, caches, strict=True):
            cache.resize(16, position)
            outputs.append(attention(x, cache, step))
        position += tokens

        assert torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)
