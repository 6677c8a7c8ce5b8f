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


def test_what_lies_beside_the_decoder_keeps_its_name() -> None:
    eye = "model.visual.blocks.0.norm1.weight"
    stored = (eye, "model.language_model.embed_tokens.weight")
    assert decoder_names(stored)[eye] == eye


def test_a_part_without_an_embedding_keeps_its_names() -> None:
    assert decoder_names(["model.layers.3.norm.weight"]) == {
        "model.layers.3.norm.weight": "model.layers.3.norm.weight"
    }
