"""A vision tower in the file of its language model, as Ollama writes Gemma 3 (`convert/convert_gemma3.go`).

Its tensors have names of their own, and the fields about it begin as those of the decoder.
"""

from dataclasses import replace

from potluck.model.gguf.keys import Config, GgufFile, Keys
from potluck.model.vision.families import CONVERTED
from potluck.model.vision.projector import text_part
from potluck.model.vision.spec import TowerSpec

_PATCHES = "v.patch_embedding"
_WHOLES = {"gemma3": "Gemma3ForConditionalGeneration"}


def has_inner_tower(decoder: GgufFile) -> bool:
    """Whether a model's file has a tower of a kind that is known."""
    return f"{_PATCHES}.weight" in decoder.shapes and Keys(decoder).architecture in _WHOLES


def inner_config(text: Config, decoder: GgufFile) -> Config:
    """The config of a whole model, from that of its decoder and from its file.

    Raises:
        InvalidConfigError: a field is missing, or has a wrong type or value.
    """
    keys = Keys(decoder)
    eye: Config = {
        "hidden_size": keys.integer("vision.embedding_length"),
        "intermediate_size": keys.integer("vision.feed_forward_length"),
        "num_hidden_layers": keys.integer("vision.block_count"),
        "num_attention_heads": keys.integer("vision.attention.head_count"),
        "image_size": keys.integer("vision.image_size"),
        "patch_size": keys.integer("vision.patch_size"),
        "layer_norm_eps": keys.number("vision.attention.layer_norm_epsilon", 1e-6),
        CONVERTED: {"whole_norm": True},  # as all norms of Gemma outside of the tower
    }
    architecture = _WHOLES[keys.architecture]
    whole: Config = {
        "architectures": [architecture],
        "vision_config": eye,
        "mm_tokens_per_image": keys.integer("mm.tokens_per_image", 256),
        "text_config": text_part(text, architecture, keys),
    }
    if "quantization_config" in text:
        whole["quantization_config"] = text["quantization_config"]
    return whole


def inner_names(tower: TowerSpec) -> dict[str, str]:
    """For each tensor of a tower its name in the file."""
    renamed = replace(
        tower.facts,
        patches=_PATCHES,
        positions="v.position_embedding.weight",
        layer="v.blk.{}.",
        qkv=("attn_q", "attn_k", "attn_v"),
        output="attn_output",
        after="v.post_layernorm",
        merger=replace(
            tower.facts.merger,
            norm="mm.mm_soft_emb_norm",
            products=("mm.mm_input_projection.weight",),
        ),
    )
    theirs = replace(tower, facts=renamed).tensors()
    return dict(zip(tower.tensors(), theirs, strict=True))
