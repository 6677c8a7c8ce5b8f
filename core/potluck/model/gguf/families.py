"""What GGUF files say of each family, and what llama.cpp knows of it that no file says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from potluck.errors import UnknownArchitectureError
from potluck.model.gguf.hybrids import (
    falcon_h1,
    granite,
    granite_experts,
    granite_hybrid,
    lfm2,
    nemotron_h,
)
from potluck.model.gguf.keys import Config, Keys
from potluck.model.gguf.layer_norms import apertus, phi3, phi_moe, stablelm, starcoder2
from potluck.model.gguf.mixtures import (
    deepseek2,
    deepseek32,
    ernie_experts,
    experts,
    glm_4,
    glm_dsa,
    gpt_oss,
    hunyuan_experts,
    hy3,
    kimi_linear,
    llama4,
    minimax,
    minimax3,
    mistral4,
    mixtral,
    partial_rotary,
    qwen2_experts,
    qwen3_experts,
    routed,
)
from potluck.model.gguf.qwen import QWEN_4_NAMES, delta_net_experts, delta_nets, qwen_4
from potluck.model.gguf.windows import laguna, mellum, mimo, muse, step, trinity, windows
from potluck.model.quantized import Converted
from potluck.model.unsupported import unknown_architecture

_NEVER = 1e29  # files divide the frequencies of what does not turn by 1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """What is known of a family beside a file's fields; `more` adds to the config."""

    architecture: str
    interleaved_heads: bool = False
    norms_are_whole: bool = False
    delta_net: Converted | None = (
        None  # how the converter writes delta nets, which then have whole decays
    )
    has_latents: bool = False  # keys and values may have different sizes
    narrow_values: bool = False  # likewise, in attention that is not latent
    sizes_differ: bool = False  # between layers: `more` sets them
    # What files call some parts: ours → theirs, the first of which a file has. Those of layers have no prefix, and
    # theirs outside of layers begin with a slash. The `gguf` package knows others.
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    named_as: str | None = None  # the family whose names it has, if the package does not know it
    more: Callable[[Keys, Config], None] = lambda keys, config: None


# Families that run, but whose GGUF files are not read; their names in these.
_SAFETENSORS_ALONE: Mapping[str, str] = {
    "deepseek4": "DeepseekV4ForCausalLM",
    "glm5next": "Glm5NextForCausalLM",
}


def family_of(keys: Keys) -> GgufFamily:
    """The family of a file's model.

    Raises:
        UnknownArchitectureError: it is none that can be run.
    """
    name = keys.architecture
    if name == "llama" and keys.integer("expert_count", 0):
        name = "mixtral"
    if name == "olmo2" and "attention.sliding_window" in keys:
        name = "olmo3"  # its files say olmo2 too
    if (family := GGUF_FAMILIES.get(name)) is not None:
        return family
    if (runs := _SAFETENSORS_ALONE.get(name)) is not None:
        raise UnknownArchitectureError(
            f"The GGUF file's model is of the architecture {name}, which Potluck reads from safetensors alone. Take"
            " the model in that form.",
            architecture=name,
            nearest=runs,
        )
    fields = [field.replace(".", "_") for field in keys.file.metadata]
    families = {family.architecture for family in GGUF_FAMILIES.values()}
    what = "The GGUF file's model"
    raise unknown_architecture(what, name, GGUF_FAMILIES, fields=fields, families=families)


def _exaone_moe(keys: Keys, config: Config) -> None:
    routed(keys, config)
    _exaone4(keys, config)


def _gemma(keys: Keys, config: Config, *, largest: int) -> None:
    """Set attention scale and window; with `largest` layers the scale is by hidden size / heads."""
    hidden, heads = cast("int", config["hidden_size"]), cast("int", config["num_attention_heads"])
    is_largest = config["num_hidden_layers"] == largest
    config["query_pre_attn_scalar"] = hidden // heads if is_largest else config["head_dim"]
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None


def _gemma2(keys: Keys, config: Config) -> None:
    _gemma(keys, config, largest=46)
    config["attn_logit_softcapping"] = keys.number("attn_logit_softcapping", 50.0)
    config["final_logit_softcapping"] = keys.number("final_logit_softcapping", 30.0)


def _gemma3(keys: Keys, config: Config) -> None:
    _gemma(keys, config, largest=62)
    if "final_logit_softcapping" in keys:
        config["final_logit_softcapping"] = keys.number("final_logit_softcapping")
    config["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
    if "attention.sliding_window_pattern" in keys:
        windows(keys, config)


def _gemma4(keys: Keys, config: Config) -> None:
    windows(keys, config)
    kinds = cast("list[str]", config["layer_types"])
    heads = keys.each("attention.head_count_kv", keys.layers())
    local, full = (
        next((index for index, one in enumerate(kinds) if one == kind), 0)
        for kind in ("sliding_attention", "full_attention")
    )
    factors = keys.file.factors.get("rope_freqs.weight", ())
    turning = sum(factor < _NEVER for factor in factors)
    part = (turning + 0.25) / len(factors) if factors else 1.0  # the reader rounds down
    config.pop("rope_scaling", None)
    config |= {
        "head_dim": keys.integer("attention.key_length_swa", cast("int", config["head_dim"])),
        "global_head_dim": config["head_dim"],
        "num_key_value_heads": heads[local],
        "num_global_key_value_heads": heads[full],
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in keys.file.shapes,
        "hidden_size_per_layer_input": keys.integer("embedding_length_per_layer_input", 0),
        "num_kv_shared_layers": keys.integer("attention.shared_kv_layers", 0),
        "sliding_window": keys.integer("attention.sliding_window"),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10000.0),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": config["rope_theta"],
                "partial_rotary_factor": part,
            },
        },
    }
    if "final_logit_softcapping" in keys:
        config["final_logit_softcapping"] = keys.number("final_logit_softcapping")
    sizes = keys.each("feed_forward_length", keys.layers())
    config["use_double_wide_mlp"] = sizes[-1] == 2 * sizes[0]
    if config["hidden_size_per_layer_input"]:
        config["vocab_size_per_layer_input"] = keys.rows("per_layer_token_embd.weight")
    if keys.integer("expert_count", 0):
        experts(keys, config)
        config["enable_moe_block"] = True
        config["top_k_experts"] = config["num_experts_per_tok"]


def _ernie(keys: Keys, config: Config) -> None:
    config["use_bias"] = config["attention_bias"]


def _olmo3(keys: Keys, config: Config) -> None:
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    if "attention.sliding_window_pattern" in keys:
        windows(keys, config)


def _seed_oss(keys: Keys, config: Config) -> None:
    config["attention_out_bias"] = "blk.0.attn_output.bias" in keys.file.shapes


def _mistral3(keys: Keys, config: Config) -> None:
    scaling = cast("Config | None", config.pop("rope_scaling", None))
    if scaling is None:  # Mistral Small 3 and its like
        config["architectures"] = ["MistralForCausalLM"]
        config["sliding_window"] = None
        return
    if "rope.scaling.yarn_log_multiplier" in keys:
        scaling["attention_factor"] = 1.0  # as its two magnitudes are equal
    if "attention.temperature_scale" in keys:
        scaling["llama_4_scaling_beta"] = keys.number("attention.temperature_scale")
    config["rope_parameters"] = scaling | {"rope_theta": config["rope_theta"]}


def _command(keys: Keys, config: Config) -> None:
    config["logit_scale"] = keys.number("logit_scale")
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in keys.file.shapes


def _exaone4(keys: Keys, config: Config) -> None:
    config["sliding_window"] = keys.integer("attention.sliding_window", 0) or None
    if "attention.sliding_window_pattern" in keys:
        windows(keys, config)


# Of families whose names the package has for mixtures in all layers.
_DENSE_NAMES: Mapping[str, tuple[str, ...]] = {
    f"mlp.{part}_proj": (f"ffn_{part}",) for part in ("gate", "up", "down")
}
_MINIMAX_3_NAMES: Mapping[str, tuple[str, ...]] = _DENSE_NAMES | {
    **{
        f"block_sparse_moe.shared_experts.{part}_proj": (f"ffn_{part}_shexp",)
        for part in ("gate", "up", "down")
    },
    **{
        f"self_attn.index_{part}_{kind}": (f"indexer.{part}_{kind}",)
        for part in ("q", "k")
        for kind in ("proj", "norm")
    },
}
_HY_3_NAMES: Mapping[str, tuple[str, ...]] = _DENSE_NAMES | {
    "mlp.router.gate": ("ffn_gate_inp",),
    "mlp.expert_bias": ("exp_probs_b", "exp_probs_b.bias"),
}
# Of experts without a block of their own.
_EXPERT_NAMES: Mapping[str, tuple[str, ...]] = {
    f"experts.{part}_proj": (f"ffn_{part}_exps",) for part in ("gate", "up", "down")
}
_GRANITE_NAMES: Mapping[str, tuple[str, ...]] = _EXPERT_NAMES | {
    "block_sparse_moe.router.layer": ("ffn_gate_inp",),
    # of a shared expert, or of an MLP alone
    **{
        f"shared_mlp.{part}_proj": (f"ffn_{part}_shexp", f"ffn_{part}")
        for part in ("gate", "up", "down")
    },
}

GGUF_FAMILIES: Mapping[str, GgufFamily] = {
    "llama": GgufFamily(architecture="LlamaForCausalLM", interleaved_heads=True),
    "mixtral": GgufFamily(architecture="MixtralForCausalLM", interleaved_heads=True, more=mixtral),
    "llama4": GgufFamily(architecture="Llama4ForCausalLM", more=llama4),
    "qwen2": GgufFamily(architecture="Qwen2ForCausalLM"),
    "qwen3": GgufFamily(architecture="Qwen3ForCausalLM"),
    "qwen3moe": GgufFamily(architecture="Qwen3MoeForCausalLM", more=qwen3_experts),
    "qwen2moe": GgufFamily(architecture="Qwen2MoeForCausalLM", more=qwen2_experts),
    "qwen3next": GgufFamily(
        architecture="Qwen3NextForCausalLM",
        norms_are_whole=True,
        delta_net="grouped",
        more=delta_net_experts,
    ),
    "qwen2vl": GgufFamily(architecture="Qwen2ForCausalLM"),
    "qwen3vl": GgufFamily(architecture="Qwen3ForCausalLM"),
    "qwen3vlmoe": GgufFamily(architecture="Qwen3VLMoeForCausalLM", more=qwen3_experts),
    "qwen35": GgufFamily(
        architecture="Qwen3_5ForCausalLM",
        norms_are_whole=True,
        delta_net="tiled",
        more=delta_nets,
    ),
    "qwen35moe": GgufFamily(
        architecture="Qwen3_5MoeForCausalLM",
        norms_are_whole=True,
        delta_net="tiled",
        more=delta_net_experts,
    ),
    "qwen4exp": GgufFamily(
        architecture="Qwen4ExpForCausalLM",
        norms_are_whole=True,
        delta_net="tiled",
        names=QWEN_4_NAMES,
        named_as="qwen35moe",
        more=qwen_4,
    ),
    "olmoe": GgufFamily(architecture="OlmoeForCausalLM", more=experts),
    "arcee": GgufFamily(architecture="ArceeForCausalLM", interleaved_heads=True),
    "apertus": GgufFamily(architecture="ApertusForCausalLM", more=apertus),
    "falcon-h1": GgufFamily(architecture="FalconH1ForCausalLM", more=falcon_h1),
    "lfm2": GgufFamily(architecture="Lfm2ForCausalLM", sizes_differ=True, more=lfm2),
    "lfm2moe": GgufFamily(architecture="Lfm2MoeForCausalLM", sizes_differ=True, more=lfm2),
    "nemotron_h": GgufFamily(
        architecture="NemotronHForCausalLM", sizes_differ=True, more=nemotron_h
    ),
    "nemotron_h_moe": GgufFamily(
        architecture="NemotronHForCausalLM", sizes_differ=True, more=nemotron_h
    ),
    "minimax-m2": GgufFamily(architecture="MiniMaxM2ForCausalLM", more=minimax),
    "minimax-m3": GgufFamily(
        architecture="MiniMaxM3VLForCausalLM",
        norms_are_whole=True,
        names=_MINIMAX_3_NAMES,
        named_as="minimax-m2",
        more=minimax3,
    ),
    "muse-glimmer": GgufFamily(
        architecture="MuseGlimmerForCausalLM",
        interleaved_heads=True,
        norms_are_whole=True,
        names={"self_attn.gate_proj": ("attn_gate",)},
        named_as="gemma3",
        more=muse,
    ),
    "hy_v3": GgufFamily(
        architecture="HYV3ForCausalLM", names=_HY_3_NAMES, named_as="hunyuan-moe", more=hy3
    ),
    "mellum": GgufFamily(
        architecture="MellumForCausalLM", names=_DENSE_NAMES, named_as="qwen3moe", more=mellum
    ),
    "glm4moe": GgufFamily(architecture="Glm4MoeForCausalLM", more=routed),
    "deepseek2": GgufFamily(architecture="DeepseekV2ForCausalLM", has_latents=True, more=deepseek2),
    "glm-dsa": GgufFamily(architecture="GlmMoeDsaForCausalLM", has_latents=True, more=glm_dsa),
    "deepseek32": GgufFamily(
        architecture="DeepseekV32ForCausalLM",
        has_latents=True,
        named_as="glm-dsa",
        more=deepseek32,
    ),
    "mistral4": GgufFamily(architecture="Mistral4ForCausalLM", has_latents=True, more=mistral4),
    "step35": GgufFamily(
        architecture="Step3p5ForCausalLM",
        norms_are_whole=True,
        sizes_differ=True,
        names=_EXPERT_NAMES,
        more=step,
    ),
    "mimo2": GgufFamily(
        architecture="MiMoV2FlashForCausalLM", narrow_values=True, sizes_differ=True, more=mimo
    ),
    "afmoe": GgufFamily(architecture="AfmoeForCausalLM", more=trinity),
    "laguna": GgufFamily(
        architecture="LagunaForCausalLM",
        sizes_differ=True,
        names={"mlp.experts.e_score_correction_bias": ("exp_probs_b.bias",)},
        named_as="step35",
        more=laguna,
    ),
    "kimi-linear": GgufFamily(
        architecture="KimiLinearForCausalLM",
        delta_net="grouped",
        has_latents=True,
        sizes_differ=True,
        more=kimi_linear,
    ),
    "dots1": GgufFamily(architecture="Dots1ForCausalLM", more=routed),
    "exaone-moe": GgufFamily(architecture="ExaoneMoeForCausalLM", more=_exaone_moe),
    "phi3": GgufFamily(architecture="Phi3ForCausalLM", more=phi3),
    "gemma": GgufFamily(architecture="GemmaForCausalLM", norms_are_whole=True),
    "gemma2": GgufFamily(architecture="Gemma2ForCausalLM", norms_are_whole=True, more=_gemma2),
    "gemma3": GgufFamily(architecture="Gemma3ForCausalLM", norms_are_whole=True, more=_gemma3),
    "gpt-oss": GgufFamily(architecture="GptOssForCausalLM", more=gpt_oss),
    "ernie4_5": GgufFamily(architecture="Ernie4_5ForCausalLM", more=_ernie),
    "ernie4_5-moe": GgufFamily(architecture="Ernie4_5_MoeForCausalLM", more=ernie_experts),
    "hunyuan-dense": GgufFamily(architecture="HunYuanDenseV1ForCausalLM"),
    "hunyuan-moe": GgufFamily(architecture="HunYuanMoEV1ForCausalLM", more=hunyuan_experts),
    "glm4": GgufFamily(architecture="Glm4ForCausalLM", more=glm_4),
    "chatglm": GgufFamily(architecture="GlmForCausalLM", more=partial_rotary),
    "gemma4": GgufFamily(architecture="Gemma4ForCausalLM", sizes_differ=True, more=_gemma4),
    "olmo2": GgufFamily(architecture="Olmo2ForCausalLM"),
    "olmo3": GgufFamily(architecture="Olmo3ForCausalLM", more=_olmo3),
    "seed_oss": GgufFamily(architecture="SeedOssForCausalLM", more=_seed_oss),
    "mistral3": GgufFamily(
        architecture="Ministral3ForCausalLM", interleaved_heads=True, more=_mistral3
    ),
    "granite": GgufFamily(architecture="GraniteForCausalLM", interleaved_heads=True, more=granite),
    "granitemoe": GgufFamily(
        architecture="GraniteMoeSharedForCausalLM",
        interleaved_heads=True,
        names=_GRANITE_NAMES,
        more=granite_experts,
    ),
    "granitehybrid": GgufFamily(
        architecture="GraniteMoeHybridForCausalLM",
        interleaved_heads=True,
        sizes_differ=True,
        names=_GRANITE_NAMES,
        more=granite_hybrid,
    ),
    "smollm3": GgufFamily(architecture="SmolLM3ForCausalLM", interleaved_heads=True),
    "command-r": GgufFamily(architecture="CohereForCausalLM", more=_command),
    "cohere2": GgufFamily(architecture="Cohere2ForCausalLM", more=_command),
    "starcoder2": GgufFamily(architecture="Starcoder2ForCausalLM", more=starcoder2),
    "stablelm": GgufFamily(architecture="StableLmForCausalLM", more=stablelm),
    "phi2": GgufFamily(architecture="PhiForCausalLM", more=partial_rotary),
    "phimoe": GgufFamily(architecture="PhiMoEForCausalLM", more=phi_moe),
    "nemotron": GgufFamily(
        architecture="NemotronForCausalLM", norms_are_whole=True, more=partial_rotary
    ),
    "jais2": GgufFamily(architecture="Jais2ForCausalLM"),
    "exaone4": GgufFamily(architecture="Exaone4ForCausalLM", more=_exaone4),
}
GGUF_ARCHITECTURES = frozenset(GGUF_FAMILIES) - {"mixtral", "olmo3"}
"""The names that GGUF files have for the families that can be run; Mixtral's is llama, OLMo 3's olmo2."""
