"""The rows of DeepSeek V4 in the table of families."""

from collections.abc import Mapping

from potluck.model.families.facts import ExpertFacts, Family, LayerNorms

DEEPSEEK: Mapping[str, Family] = {
    # DeepSeek-V4 and its Flash, whose files have names of their own
    "DeepseekV4ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 1,
            "head_dim": 512,
            "qk_rope_head_dim": 64,
            "q_lora_rank": 1024,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "max_position_embeddings": 1048576,
            "compress_rope_theta": 160000.0,
            "compress_rates": {
                "compressed_sparse_attention": 4,
                "heavily_compressed_attention": 128,
            },
            "sliding_window": 128,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
            "hc_mult": 4,
            "hc_sinkhorn_iters": 20,
            "hc_eps": 1e-6,
            "num_hash_layers": 3,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 2048,
            "routed_scaling_factor": 1.5,
            "swiglu_limit": 10.0,
        },
        field_names={"intermediate_size": "moe_intermediate_size"},
        pooled=True,
        streams="balanced",
        norms=LayerNorms(before_mixer="attn_norm", before_mlp="ffn_norm"),
        mlp_size="moe_intermediate_size",  # of no layer: all have experts
        clamped_swiglu="plain",
        experts=ExpertFacts(
            block="ffn",
            gate="w1",
            up="w3",
            down="w2",
            intermediate="moe_intermediate_size",
            normalise=True,
            function="sqrtsoftplus",
            bias="gate.bias",
            id_table="gate.tid2eid",
            scale="routed_scaling_factor",
            shared="shared_experts",
            shared_count="n_shared_experts",
        ),
    ),
}
