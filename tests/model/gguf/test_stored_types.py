"""Which quantisation a GGUF file's tensors are, layer by layer."""

import pytest
from gguf_configs import read_gguf

from potluck.model.quantized import ROLES, Quantization


@pytest.mark.parametrize(
    ("kinds", "stored"),
    [
        ({"token_embd.weight": "Q6_K", "a": "Q4_K", "b": "Q4_K"}, (4, False)),
        ({"token_embd.weight": "F16", "a": "Q4_0", "b": "Q4_0"}, (4, True)),
        ({"token_embd.weight": "Q8_0", "a": "Q8_0", "b": "Q8_0"}, (8, True)),
        ({"token_embd.weight": "Q8_0", "a": "IQ4_XS", "b": "IQ4_XS"}, (4, False)),
        ({"token_embd.weight": "BF16", "a": "BF16", "b": "BF16"}, (16, False)),
        ({"token_embd.weight": "F32", "a": "F32", "b": "F32"}, (32, False)),
    ],
)
def test_the_model_is_stored_as_most_of_its_weights_are(
    kinds: dict[str, str], stored: tuple[int, bool]
) -> None:
    _, config = read_gguf(shapes={"a": (1000, 64), "b": (1000, 64)}, kinds=kinds)

    assert config.quantization is not None
    found = config.quantization
    assert (found.method, found.bits, found.is_symmetric) == ("gguf", *stored)
    assert found.interleaved_heads


def layered(kinds: dict[str, str], layers: int = 1) -> Quantization:
    """Of a model with a large matrix of Q4_K, and matrices of layers of these types."""
    whole = {"token_embd.weight": "Q6_K", "a": "Q4_K"} | kinds
    shapes = dict.fromkeys(whole, (64, 64)) | {"a": (64_000, 64)}
    _, config = read_gguf(
        shapes=shapes, kinds=whole | {"blk.0.ffn_up.weight": "Q4_K"}, block_count=layers
    )
    assert config.quantization is not None
    return config.quantization


def test_matrices_that_are_stored_more_finely_are_told_layer_by_layer() -> None:
    stored = layered(
        {
            "blk.0.attn_q.weight": "Q4_K",
            "blk.0.attn_v.weight": "Q6_K",
            "blk.0.attn_output.weight": "Q4_0",
            "blk.0.ffn_gate.weight": "Q4_1",
            "blk.0.ffn_down.weight": "Q4_K",
            "blk.1.attn_q.weight": "Q4_K",
            "blk.1.ffn_down.weight": "IQ4_XS",
            "blk.2.ffn_gate_exps.weight": "Q5_K",
            "blk.2.ffn_gate_inp.weight": "F32",  # the router
            "blk.2.ffn_down.3.weight": "Q8_0",
            "blk.2.attn_norm.weight": "F32",
            "blk.3.attn_qkv.weight": "Q4_K",
            "blk.4.attn_q.weight": "Q6_K",  # of no layer
            f"blk.{'1' * 5000}.attn_q.weight": "Q6_K",
        },
        layers=4,
    )

    assert stored.fits_offsets
    assert stored.higher_precision == {(0, "qkv"), (1, "down"), (2, "gate_up"), (2, "down")}


def test_layers_of_too_many_kinds_are_taken_for_one() -> None:
    parts = ("attn_q", "attn_output", "ffn_gate", "ffn_down")
    finest = {f"blk.{layer}.{part}.weight": "Q6_K" for layer, part in enumerate(parts)}
    plain = {f"blk.{layer}.{part}.weight": "Q4_K" for layer in range(5) for part in parts}

    stored = layered(plain | finest, layers=5)

    assert stored.higher_precision == {(layer, role) for layer in range(5) for role in ROLES}


@pytest.mark.parametrize(
    ("ends", "is_coarse"),
    [
        ({"token_embd.weight": "Q4_K"}, True),
        ({"token_embd.weight": "Q6_K"}, False),
        ({"token_embd.weight": "Q6_K", "output.weight": "Q4_1"}, True),
        ({"token_embd.weight": "Q4_K", "output.weight": "Q6_K"}, False),
    ],
)
def test_a_head_of_4_bits_is_told(ends: dict[str, str], is_coarse: bool) -> None:
    assert layered(ends).has_coarse_head == is_coarse


@pytest.mark.parametrize(
    "kind", ["IQ4_XS", "IQ4_NL", "Q4_0", "Q5_K", "Q6_K", "Q8_0", "Q3_K", "F16"]
)
def test_other_types_have_no_offsets(kind: str) -> None:
    raw, config = read_gguf(shapes={"a": (1000, 64)}, kinds={"a": kind})

    assert config.quantization is not None
    assert not config.quantization.fits_offsets
    assert "finer" not in raw["quantization_config"]
