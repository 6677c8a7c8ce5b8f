"""Facts and defaults of mixtures of experts that families of several makers share."""

from dataclasses import replace

from potluck.model.families.facts import ExpertFacts, ParallelNorms

MIXTRAL_EXPERTS = ExpertFacts(
    block="block_sparse_moe",
    gate="w1",
    up="w3",
    down="w2",
    intermediate="intermediate_size",
    normalise=True,
)
QWEN_EXPERTS = ExpertFacts(
    block="mlp",
    intermediate="moe_intermediate_size",
    normalise="norm_topk_prob",
    layers="stepped",
)
DEEPSEEK_EXPERTS = replace(
    QWEN_EXPERTS,
    layers="after dense",
    function="sigmoid",
    bias="gate.e_score_correction_bias",
    groups=True,
    scale="routed_scaling_factor",
    shared="shared_experts",
    shared_count="n_shared_experts",
)
# Those of Trinity and of Hy3
SCALED_EXPERTS = replace(
    DEEPSEEK_EXPERTS,
    router="router.gate",
    bias="expert_bias",
    groups=False,
    normalise=True,
    shared_count="num_shared_experts",
)
ERNIE_EXPERTS = replace(
    QWEN_EXPERTS,
    layers="between",
    chosen="moe_k",
    normalise=True,
    bias="moe_statics.e_score_correction_bias",
    shared="shared_experts",
    shared_count="moe_num_shared_experts",
)
LLAMA_EXPERTS = ExpertFacts(
    block="feed_forward",
    fused="gate_up_proj",
    stacked="columns",
    intermediate="intermediate_size",
    normalise=False,
    layers="listed",
    router="router",
    function="sigmoid",
    scales_input=True,
    shared="shared_expert",
    shared_size="intermediate_size",
)
HUNYUAN_EXPERTS = replace(
    QWEN_EXPERTS,
    layers="all",
    router="gate.wg",
    chosen="moe_topk",
    intermediate="intermediate_size",
    normalise=True,
    shared="shared_mlp",
    shared_size="intermediate_size",
)
GEMMA_EXPERTS = ExpertFacts(
    block="",
    intermediate="moe_intermediate_size",
    normalise=True,
    switch="enable_moe_block",
    chosen="top_k_experts",
    stacked="rows",
    stacked_gates="gate_up_proj",
    router="router.proj",
    router_norm="router.scale",
    expert_scales="router.per_expert_scale",
    beside=ParallelNorms(
        before_dense="pre_feedforward_layernorm",
        after_dense="post_feedforward_layernorm_1",
        before_moe="pre_feedforward_layernorm_2",
        after_moe="post_feedforward_layernorm_2",
    ),
)
DEEPSEEK_DEFAULTS: dict[str, object] = {
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
}
GRANITE_EXPERTS = ExpertFacts(
    block="",
    intermediate="intermediate_size",
    normalise=True,
    router="block_sparse_moe.router.layer",
    stacked="rows",
    stacked_gates="gate_up_proj",
    stack_names={
        "block_sparse_moe.input_linear.weight": "experts.gate_up_proj",
        "block_sparse_moe.output_linear.weight": "experts.down_proj",
    },
)
OPENAI_EXPERTS = ExpertFacts(
    block="mlp",
    fused="gate_up_proj",
    stacked="columns",
    intermediate="intermediate_size",
    normalise=True,
    router="router",
    router_bias=True,
    expert_bias=True,
)
