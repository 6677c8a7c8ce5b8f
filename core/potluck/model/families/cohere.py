"""The rows of Cohere in the table of families."""

from collections.abc import Mapping

from potluck.model.families.facts import Family, LayerNorms

_COMMAND: Mapping[str, object] = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
    "eos_token_id": 255001,
}
_NORMS = LayerNorms(before_mixer="input_layernorm")

COHERE: Mapping[str, Family] = {
    # Command R and Aya
    "CohereForCausalLM": Family(
        defaults=_COMMAND | {"rope_theta": 500000.0},
        norms=_NORMS,
        norm_kind="layer",
        side_by_side=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        paired_rope=True,
        logits_multiplier="logit_scale",
        lacks={"use_qk_norm": "layer norms of queries and keys, as Command R+ has them"},
    ),
    # Command R7B and Command A
    "Cohere2ForCausalLM": Family(
        defaults=_COMMAND | {"sliding_window": 4096, "sliding_window_pattern": 4},
        norms=_NORMS,
        norm_kind="layer",
        side_by_side=True,
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        windows="pattern",
        layer_types=True,
        rope_layers="windowed",
        paired_rope=True,
        logits_multiplier="logit_scale",
    ),
}
