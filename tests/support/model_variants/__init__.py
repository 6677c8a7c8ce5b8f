"""Configs of small models of every family, in the words of `transformers`: variants of one shape."""

from typing import Any

from model_variants.cohere import COHERE_VARIANTS
from model_variants.common import SHAPE
from model_variants.deepseek import DEEPSEEK_VARIANTS
from model_variants.ernie import ERNIE_VARIANTS
from model_variants.exaone import EXAONE_VARIANTS
from model_variants.falcon import FALCON_VARIANTS
from model_variants.gemma import GEMMA_VARIANTS
from model_variants.glm import GLM_VARIANTS
from model_variants.granite import GRANITE_VARIANTS
from model_variants.hunyuan import HUNYUAN_VARIANTS
from model_variants.latent import LATENT_VARIANTS
from model_variants.layer_norms import LAYER_NORMS_VARIANTS
from model_variants.liquid import LIQUID_VARIANTS
from model_variants.llama import LLAMA_VARIANTS
from model_variants.minimax import MINIMAX_VARIANTS
from model_variants.mistral import MISTRAL_VARIANTS
from model_variants.mixtures import MIXTURES_VARIANTS
from model_variants.nemotron import NEMOTRON_VARIANTS
from model_variants.olmo import OLMO_VARIANTS
from model_variants.openai import OPENAI_VARIANTS
from model_variants.pictures import WHOLE_CLASSES, WITH_PICTURES
from model_variants.qwen import QWEN_VARIANTS
from model_variants.step import STEP_VARIANTS
from model_variants.ungated import UNGATED_VARIANTS
from model_variants.xiaomi import XIAOMI_VARIANTS

__all__ = ["SHAPE", "VARIANTS", "WHOLE_CLASSES", "WIDE_VARIANTS", "WITH_PICTURES"]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **LLAMA_VARIANTS,
    **MISTRAL_VARIANTS,
    **LAYER_NORMS_VARIANTS,
    **QWEN_VARIANTS,
    **GEMMA_VARIANTS,
    **OLMO_VARIANTS,
    **EXAONE_VARIANTS,
    **COHERE_VARIANTS,
    **ERNIE_VARIANTS,
    **GLM_VARIANTS,
    **GRANITE_VARIANTS,
    **HUNYUAN_VARIANTS,
    **MIXTURES_VARIANTS,
    **MINIMAX_VARIANTS,
    **LATENT_VARIANTS,
    **DEEPSEEK_VARIANTS,
    **NEMOTRON_VARIANTS,
    **FALCON_VARIANTS,
    **LIQUID_VARIANTS,
    **UNGATED_VARIANTS,
    **OPENAI_VARIANTS,
    **STEP_VARIANTS,
    **XIAOMI_VARIANTS,
}
WIDE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # For the larger blocks of GGUF. Rounding errors are larger than in the other comparisons.
    "llama, blocks of 256": ("Llama", {"hidden_size": 256, "intermediate_size": 512}),
}
