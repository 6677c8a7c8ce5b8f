"""Queries after other tokens get no mask; `test_ops.py` compares what they compute."""

import torch
from torch.nn.attention.bias import CausalBias

from potluck.engine.accelerator.aligned import AlignedAttention, has_flash
from potluck.engine.layers.attention import Step
from potluck.engine.layers.linear import FloatLinear
from potluck.engine.layers.products import Products
from potluck.model.mixing.mixers import AttentionSpec

CPU = torch.device("cpu")


def mask_of(window: int | None, step: Step) -> torch.Tensor | None:
    spec = AttentionSpec(
        hidden_size=8, heads=6, kv_heads=2, head_dim=8, rotary_dim=8, window=window, scale=0.3
    )
    qkv, output = (FloatLinear(torch.randn(8, 8), None, Products()) for _ in range(2))
    return AlignedAttention(spec, qkv, None, output)._mask(step, step.span(window))


def test_queries_after_other_tokens_have_no_mask_unless_they_have_windows() -> None:
    step = Step(9, 4, (), CPU)

    assert isinstance(mask_of(None, step), CausalBias)
    assert isinstance(mask_of(13, step), CausalBias)  # which reaches back to the first token
    windowed = mask_of(12, step)
    assert windowed is step.span(12).mask
    assert windowed is not None


def test_queries_from_the_first_token_on_have_none_at_all() -> None:
    assert mask_of(None, Step(0, 4, (), CPU)) is None


def test_a_cpu_has_no_flash_attention_that_aligns_queries() -> None:
    assert not has_flash(CPU, torch.bfloat16)
