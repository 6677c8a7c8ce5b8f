"""The rows of Falcon in the table of families; Falcon 3 is a Llama."""

from collections.abc import Mapping

from potluck.model.families.facts import Family, LayerNorms

FALCON: Mapping[str, Family] = {
    "FalconH1ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "mamba_d_ssm": 1024,
            "mamba_n_heads": 128,
            "mamba_n_groups": 1,
            "mamba_d_state": 256,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_norm_before_gate": True,
            "mamba_rms_norm": False,
        },
        norms=LayerNorms(before_mixer="input_layernorm", before_mlp="pre_ff_layernorm"),
        mlp_block="feed_forward",
        mamba="mamba",
        beside=True,
        multipliers=True,
        embedding_multiplier="embedding_multiplier",
        logits_multiplier="lm_head_multiplier",
        lacks=dict.fromkeys(
            ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"),
            "biases of matrices that are multiplied by numbers",
        ),
    ),
}
