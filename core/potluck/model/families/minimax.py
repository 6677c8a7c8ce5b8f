"""The rows of MiniMax in the table of families, and the words of its files."""

from collections.abc import Mapping
from dataclasses import replace

from potluck.model.families.experts import MIXTRAL_EXPERTS
from potluck.model.families.facts import Family
from potluck.model.families.words import FULL, first_entries, renamed
from potluck.model.fields import Fields
from potluck.model.limits import MAX_LAYERS

_INDEXED = "minimax_m3_sparse"
_INDEX = {
    "sparse_num_index_heads": "index_n_heads",
    "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size",
    "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}


def _words(fields: Fields) -> Mapping[str, object]:
    """An object has what indexers have; flags say which layers have one, and which have experts."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    sparse = "sparse_attention_config"
    given = fields.fields(sparse) if sparse in fields else Fields({})
    flags = first_entries(given, "sparse_attention_freq", layers) or [0] * layers
    mixes = first_entries(fields, "moe_layer_freq", layers) or [1] * layers
    return (
        renamed(given, _INDEX)
        | {
            "hidden_act": "silu",  # files say swigluoai: `swiglu_alpha` and `swiglu_limit` say what it is
            "layer_types": first_entries(fields, "layer_types", layers)
            or [_INDEXED if flag else FULL for flag in flags],
            "mlp_layer_types": first_entries(fields, "mlp_layer_types", layers)
            or ["sparse" if flag else "dense" for flag in mixes],
        }
    )


MINIMAX: Mapping[str, Family] = {
    "MiniMaxM2ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5e6,
            "num_local_experts": 256,
            "num_experts_per_tok": 8,
        },
        qk_norm="projection",
        partial_rotary=True,
        experts=replace(MIXTRAL_EXPERTS, function="sigmoid", bias="e_score_correction_bias"),
    ),
    # The text of MiniMax M3
    "MiniMaxM3VLForCausalLM": Family(
        defaults={
            "vocab_size": 200064,
            "hidden_size": 6144,
            "intermediate_size": 3072,  # of experts
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "num_hidden_layers": 60,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "rope_theta": 5e6,
            "rotary_dim": 64,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "routed_scaling_factor": 2.0,
            "index_n_heads": 4,
            "index_head_dim": 128,
            "index_block_size": 128,
            "index_topk_blocks": 16,
            "index_local_blocks": 1,
            "eos_token_id": 200020,
        },
        words=_words,
        unit_offset=True,
        qk_norm="head",
        head_index=_INDEXED,
        partial_rotary=True,
        mlp_size="dense_intermediate_size",
        clamped_swiglu="everywhere",
        experts=replace(
            MIXTRAL_EXPERTS,
            layers="after dense",
            function="sigmoid",
            bias="e_score_correction_bias",
            scale="routed_scaling_factor",
            shared="shared_experts",
            shared_size="shared_intermediate_size",
            shared_names=("gate_proj", "up_proj", "down_proj"),
        ),
    ),
}
