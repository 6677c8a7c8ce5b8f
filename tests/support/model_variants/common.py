"""Sizes and fields that variants of several families share."""

SHAPE = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
SLIDING = {"sliding_window": 7}
HALF_ROTARY = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
ROUTED = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 1,
    "head_dim": 16,
}
