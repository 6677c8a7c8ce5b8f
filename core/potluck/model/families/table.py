"""The table of model families, with the facts in which they differ.

A family is a row of values, or of names of `config.json` fields that hold the value. Nothing else
in the code asks for a model's family. `defaults` has the values that the family's configuration
class in `transformers` (`models/*/configuration_*.py`) takes for missing fields, if they differ
from the common ones: the weights were trained with them. A field that is `null` gets no
default there, nor here. Names of tensors are those of the files on the Hub.
"""

from collections.abc import Mapping

from potluck.model.families.cohere import COHERE
from potluck.model.families.deepseek import DEEPSEEK
from potluck.model.families.ernie import ERNIE
from potluck.model.families.exaone import EXAONE
from potluck.model.families.facts import Family
from potluck.model.families.falcon import FALCON
from potluck.model.families.gemma import GEMMA
from potluck.model.families.glm import GLM
from potluck.model.families.granite import GRANITE
from potluck.model.families.hunyuan import HUNYUAN
from potluck.model.families.latent import LATENT
from potluck.model.families.layer_norms import LAYER_NORMS
from potluck.model.families.liquid import LIQUID
from potluck.model.families.llama import LLAMA
from potluck.model.families.minimax import MINIMAX
from potluck.model.families.mistral import MISTRAL
from potluck.model.families.mixtures import MIXTURES
from potluck.model.families.nemotron import NEMOTRON
from potluck.model.families.olmo import OLMO
from potluck.model.families.openai import OPENAI
from potluck.model.families.qwen import QWEN
from potluck.model.families.step import STEP
from potluck.model.families.ungated import UNGATED_MLPS
from potluck.model.families.xiaomi import XIAOMI

FAMILIES: Mapping[str, Family] = {
    **LLAMA,
    **GRANITE,
    **MISTRAL,
    **LAYER_NORMS,
    **QWEN,
    **GEMMA,
    **OLMO,
    **EXAONE,
    **COHERE,
    **ERNIE,
    **GLM,
    **HUNYUAN,
    **MIXTURES,
    **MINIMAX,
    **LATENT,
    **DEEPSEEK,
    **NEMOTRON,
    **FALCON,
    **LIQUID,
    **UNGATED_MLPS,
    **OPENAI,
    **STEP,
    **XIAOMI,
}

WITH_TEXT: Mapping[str, Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Gemma4ForConditionalGeneration": {"gemma4_text": "Gemma4ForCausalLM"},
    "Gemma4UnifiedForConditionalGeneration": {"gemma4_unified_text": "Gemma4UnifiedForCausalLM"},
    "Glm5NextForConditionalGeneration": {"glm5_next_text": "Glm5NextForCausalLM"},
    "Glm4vForConditionalGeneration": {"glm4v_text": "Glm4vForCausalLM"},
    "Glm4vMoeForConditionalGeneration": {"glm4v_moe_text": "Glm4vMoeForCausalLM"},
    "Glm46VForConditionalGeneration": {
        "glm4v_text": "Glm4vForCausalLM",
        "glm4v_moe_text": "Glm4vMoeForCausalLM",
    },
    "Idefics3ForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "SmolVLMForConditionalGeneration": {"llama": "LlamaForCausalLM"},
    "InternVLForConditionalGeneration": {
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "llama": "LlamaForCausalLM",
        "gpt_oss": "GptOssForCausalLM",
    },
    "LightOnOCRForConditionalGeneration": {"qwen3": "Qwen3ForCausalLM"},
    "LightOnOcrForConditionalGeneration": {"qwen3": "Qwen3ForCausalLM"},
    "Llama4ForConditionalGeneration": {"llama4_text": "Llama4ForCausalLM"},
    "LlavaForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
    },
    "LlavaNextForConditionalGeneration": {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
    },
    "Mistral3ForConditionalGeneration": {
        "mistral": "MistralForCausalLM",
        "ministral3": "Ministral3ForCausalLM",
        "mistral4": "Mistral4ForCausalLM",
    },
    # Kimi K2.5 and later
    "KimiK25ForConditionalGeneration": {
        "kimi_k2": "DeepseekV3ForCausalLM",
        "deepseek_v3": "DeepseekV3ForCausalLM",
    },
    "Qwen2VLForConditionalGeneration": {"qwen2_vl_text": "Qwen2ForCausalLM"},
    "Qwen2_5_VLForConditionalGeneration": {"qwen2_5_vl_text": "Qwen2ForCausalLM"},
    "Qwen3VLForConditionalGeneration": {"qwen3_vl_text": "Qwen3ForCausalLM"},
    "Qwen3VLMoeForConditionalGeneration": {"qwen3_vl_moe_text": "Qwen3VLMoeForCausalLM"},
    "Qwen3_5ForConditionalGeneration": {"qwen3_5_text": "Qwen3_5ForCausalLM"},
    "Qwen3_5MoeForConditionalGeneration": {"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"},
    "Qwen4ExpForConditionalGeneration": {"qwen4_exp_text": "Qwen4ExpForCausalLM"},
    "Exaone4_5_ForConditionalGeneration": {
        "exaone4": "Exaone4ForCausalLM",
        "exaone4_5_text": "Exaone4ForCausalLM",
    },
    "MuseGlimmerForConditionalGeneration": {"muse_glimmer_text": "MuseGlimmerForCausalLM"},
    "MiniMaxM3SparseForConditionalGeneration": {"minimax_m3_vl_text": "MiniMaxM3VLForCausalLM"},
    "Step3p7ForConditionalGeneration": {"step3p5": "Step3p5ForCausalLM"},
}
"""Models of more than text: for each `model_type` that their `text_config` may have, the family of their text.

The first one is taken where it says nothing.
"""
