"""Names of a decoder's tensors are ours, wherever the decoder lies in the files."""

import pytest

from potluck.model.naming import decoder_names

OURS = ("model.embed_tokens.weight", "model.layers.0.mlp.gate.weight", "lm_head.weight")


@pytest.mark.parametrize(
    "stored",
    [
        OURS,
        ("model.language_model.embed_tokens.weight", "model.language_model.layers.0.mlp.gate.weight", OURS[2]),
        (
            "language_model.model.embed_tokens.weight",
            "language_model.model.layers.0.mlp.gate.weight",
            "language_model.lm_head.weight",
        ),
        ("embed_tokens.weight", "layers.0.mlp.gate.weight", OURS[2]),
    ],
    ids=["alone", "below the model", "beside the model", "without a base"],
)  # fmt: skip
def test_the_decoder_has_the_same_names_wherever_it_lies(stored: tuple[str, ...]) -> None:
    assert tuple(decoder_names(stored)[name] for name in stored) == OURS


def test_a_vision_tower_has_one_name_wherever_it_lies() -> None:
    for stored, ours in (
        ("model.visual.blocks.0.norm1.weight", "visual.blocks.0.norm1.weight"),
        ("visual.merger.ln_q.weight", "visual.merger.ln_q.weight"),
        ("vision_tower.vision_model.post_layernorm.bias", "vision_tower.post_layernorm.bias"),
        ("model.vision_tower.post_layernorm.bias", "vision_tower.post_layernorm.bias"),
        ("multi_modal_projector.linear_1.weight", "multi_modal_projector.linear_1.weight"),
    ):
        assert decoder_names([stored, "model.language_model.embed_tokens.weight"])[stored] == ours


def test_what_lies_beside_decoder_and_tower_keeps_its_name() -> None:
    head = "model.mtp.layers.0.norm.weight"
    assert decoder_names([head, "model.language_model.embed_tokens.weight"])[head] == head


def test_a_part_without_an_embedding_keeps_its_names() -> None:
    assert decoder_names(["model.layers.3.norm.weight"]) == {
        "model.layers.3.norm.weight": "model.layers.3.norm.weight"
    }
