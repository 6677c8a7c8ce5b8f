"""Mistral's own layout of a model: `params.json` and `consolidated.safetensors`, in the form of Hugging Face.

Its repositories have this layout beside that of Hugging Face, or instead of it. It differs in names, and in the
order of the rows of queries and keys: rope rotates neighbouring rows there (`convert_mistral_weights_to_hf.py` of
`transformers`, `permute_for_rope`). What `params.json` says is read as vLLM reads it
(`transformers_utils/configs/mistral.py`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import cast

from potluck.errors import InvalidConfigError, UnknownArchitectureError
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_POSITION

_FIELDS: Mapping[str, str] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
}
_YARN: Mapping[str, str] = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_MAX_POSITION = 128_000  # where params.json says nothing, as in vLLM
_PLAIN: Mapping[str, object] = {"quant_method": "plain", "interleaved_heads": True}

_BESIDE: Mapping[str, str] = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_MATRICES: Mapping[str, str] = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.gate": "block_sparse_moe.gate",
    "gate": "block_sparse_moe.gate",
}
_OF_LAYER = re.compile(
    r"layers\.(?P<layer>\d+)\.(?P<matrix>[\w.]+?)\.(?P<suffix>weight|qscale_weight)"
)
_EXPERT = re.compile(r"(?:feed_forward\.)?experts\.(?P<expert>\d+)\.(?P<matrix>w[123])")
_SUFFIXES: Mapping[str, str] = {"weight": "weight", "qscale_weight": "weight_scale"}


def config_of_params(params: Mapping[str, object]) -> dict[str, object]:
    """The `config.json` of a model that has only `params.json`.

    Raises:
        UnknownArchitectureError: it is of a kind that Potluck cannot run in this layout.
        InvalidConfigError: a field is missing or makes no sense.
    """
    fields = Fields(params)
    config = {theirs: params[ours] for ours, theirs in _FIELDS.items() if ours in fields}
    architecture = "MistralForCausalLM"
    if "moe" in fields:
        moe = fields.fields("moe")
        _check_kind(fields, moe)
        architecture = "MixtralForCausalLM"
        config["num_local_experts"] = moe.value("num_experts")
        config["num_experts_per_tok"] = moe.value("num_experts_per_tok")
    else:
        _check_kind(fields, fields)
    if isinstance(params.get("sliding_window"), list):
        raise invalid(
            "sliding_window (of params.json)", params["sliding_window"], "must be one number"
        )
    config["sliding_window"] = params.get("sliding_window")
    config["max_position_embeddings"] = fields.integer(
        "max_position_embeddings" if "max_position_embeddings" in fields else "max_seq_len",
        1,
        MAX_POSITION,
        _MAX_POSITION,
    )
    if (rope := _rope(fields)) is not None:
        config["rope_parameters"] = rope
        if "llama_4_scaling_beta" in rope:
            architecture = "Ministral3ForCausalLM"
    config["architectures"] = [architecture]
    return in_this_order({**config, **_quantization(fields)})


def in_this_order(config: Mapping[str, object]) -> dict[str, object]:
    """The same config, saying that queries and keys are in the order of this layout."""
    stored = config.get("quantization_config")
    stored = cast("Mapping[str, object]", stored) if isinstance(stored, Mapping) else _PLAIN
    return {**config, "quantization_config": {**stored, "interleaved_heads": True}}


def hugging_face_names(stored: Iterable[str]) -> dict[str, str]:
    """Of each of the decoder's tensors in such files, its name in the other layout."""
    named = {name: _hugging_face_name(name) for name in stored}
    return {name: theirs for name, theirs in named.items() if theirs is not None}


def _hugging_face_name(name: str) -> str | None:
    if name in _BESIDE:
        return _BESIDE[name]
    if (found := _OF_LAYER.fullmatch(name)) is None:
        return None
    if (expert := _EXPERT.fullmatch(found["matrix"])) is not None:
        matrix = f"block_sparse_moe.experts.{expert['expert']}.{expert['matrix']}"
    elif (matrix := _MATRICES.get(found["matrix"])) is None:
        return None
    return f"model.layers.{found['layer']}.{matrix}.{_SUFFIXES[found['suffix']]}"


def _check_kind(fields: Fields, moe: Fields) -> None:
    """Refuse the models whose layers differ from those of Mistral 7B and Mixtral."""
    kind = fields.text("model_type", "transformer")
    if kind == "transformer":
        if "qk_nope_head_dim" in fields:
            kind = "Mistral Large 3 or Mistral 4 (latent attention)"
        elif moe.integer("num_shared_experts", 0, 1 << 10, 0):
            kind = "Mistral with shared experts"
        else:
            return
    raise UnknownArchitectureError(
        f"The model is {kind[:80]}, which Potluck cannot read from params.json and consolidated.safetensors."
        " Use the files config.json and model-….safetensors of the same repository, or a GGUF file.",
        architecture=kind[:80],
    )


def _rope(fields: Fields) -> dict[str, object] | None:
    if "yarn" not in fields:
        return None
    yarn = fields.fields("yarn")
    rope: dict[str, object] = {
        "rope_type": "yarn",
        "rope_theta": fields.value("rope_theta"),
        **{theirs: yarn.value(ours) for ours, theirs in _YARN.items() if ours in yarn},
    }
    if not yarn.flag("apply_scale", True):
        rope["attention_factor"] = 1.0
    if "llama_4_scaling" in fields:
        scaling = fields.fields("llama_4_scaling")
        rope["llama_4_scaling_beta"] = scaling.value("beta")
        rope["original_max_position_embeddings"] = scaling.value("original_max_position_embeddings")
    return rope


def _quantization(fields: Fields) -> dict[str, object]:
    if "quantization" not in fields:
        return {}
    given = fields.fields("quantization")
    if (form := given.text("qformat_weight", "")) == "fp8_e4m3":
        return {"quantization_config": {"quant_method": "fp8"}}
    raise InvalidConfigError(
        f"params.json says that the weights are stored as {form[:60] or 'something that has no name'}, of"
        " which Potluck reads only fp8_e4m3 here. Use the files config.json and model-….safetensors of the"
        " same repository, or a GGUF file.",
        field="quantization",
    )
