"""What a model of a family that cannot be run would need, and which family that runs is nearest to it.

A table has the best known ones. Of others the fields of their config say which block they have: one row for each
kind of block, by a part of a field's name. Fields of GGUF files have the same parts in their names.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from potluck.errors import UnknownArchitectureError
from potluck.model.fields import escaped


@dataclass(frozen=True, slots=True)
class Missing:
    """What keeps a family from being run."""

    block: str  # what it needs
    nearest: str  # a family that runs


_STATE_SPACE = "layers with a state space of its own kind (Mamba)"
_LAYER_NORM = "norms that subtract the mean (LayerNorm)"
_PARALLEL = f"{_LAYER_NORM}, and attention beside the MLP"
_SQUARES = "an MLP without gates (squared ReLU)"
_CONVOLUTIONS = "layers with short convolutions in place of attention"
_INDEXER = "attention to tokens that an indexer of its own kind chooses"
_HYBRID = "GraniteMoeHybridForCausalLM"
_LLAMA, _MIXTURE = "LlamaForCausalLM", "Qwen3MoeForCausalLM"
_DEEPSEEK, _SPARSE = "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"

UNSUPPORTED: Mapping[str, Missing] = {
    "Cohere2MoeForCausalLM": Missing(
        "experts beside attention, and the average of these and a shared one", "Cohere2ForCausalLM"
    ),
    "ApertusForCausalLM": Missing("an MLP without gates (xIELU)", "Qwen3ForCausalLM"),
    "ArceeForCausalLM": Missing(_SQUARES, _LLAMA),
    "NemotronForCausalLM": Missing(f"{_LAYER_NORM}, and {_SQUARES}", _LLAMA),
    "NemotronHForCausalLM": Missing(f"layers of a mixer or an MLP alone, and {_SQUARES}", _HYBRID),
    "FalconH1ForCausalLM": Missing("attention beside a state space in one layer", _HYBRID),
    "BambaForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "JambaForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "Zamba2ForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "MambaForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "Mamba2ForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "RwkvForCausalLM": Missing("layers with a recurrent state (RWKV)", _LLAMA),
    "Lfm2ForCausalLM": Missing(_CONVOLUTIONS, "Qwen3ForCausalLM"),
    "Lfm2MoeForCausalLM": Missing(_CONVOLUTIONS, _MIXTURE),
    "Lfm3ForCausalLM": Missing(_CONVOLUTIONS, "Qwen3ForCausalLM"),
    "Gemma3nForCausalLM": Missing("embeddings of each layer", "Gemma3ForCausalLM"),
    "Gemma3nForConditionalGeneration": Missing("embeddings of each layer", "Gemma3ForCausalLM"),
    "Step3p7ForConditionalGeneration": Missing(
        "attention with gates, and heads that differ from layer to layer", _MIXTURE
    ),
    "Step3p5ForCausalLM": Missing(
        "attention with gates, and heads that differ from layer to layer", _MIXTURE
    ),
    "MiMoV2FlashForCausalLM": Missing("attention with values narrower than its keys", _MIXTURE),
    "BailingHybridForCausalLM": Missing(
        "latent attention with a gate for each head, and decays that are made in one step",
        "KimiLinearForCausalLM",
    ),
    "LongcatFlashForCausalLM": Missing(
        "layers of two attentions, with experts beside them of which some do nothing", _DEEPSEEK
    ),
    "MistralLarge4ForConditionalGeneration": Missing(
        "layers that attend to the cache of an earlier one", _SPARSE
    ),
    "MiniMaxForCausalLM": Missing("linear attention (lightning attention)", "MiniMaxM2ForCausalLM"),
    "MiniMaxM3SparseForConditionalGeneration": Missing(_INDEXER, "MiniMaxM2ForCausalLM"),
    "PhiForCausalLM": Missing(_PARALLEL, "Phi3ForCausalLM"),
    "PhimoeForCausalLM": Missing(_LAYER_NORM, "MixtralForCausalLM"),
    "Phi4MultimodalForCausalLM": Missing("weights that are added for pictures", "Phi3ForCausalLM"),
    "StableLmForCausalLM": Missing(_LAYER_NORM, _LLAMA),
    "Starcoder2ForCausalLM": Missing(_LAYER_NORM, "Qwen2ForCausalLM"),
    "GPTNeoXForCausalLM": Missing(_PARALLEL, _LLAMA),
    "FalconForCausalLM": Missing(_PARALLEL, _LLAMA),
}

# Parts of fields' names, the most telling first.
_SIGNS: tuple[tuple[tuple[str, ...], Missing], ...] = (
    (("index_topk", "indexer"), Missing(_INDEXER, _SPARSE)),
    (("kv_lora_rank",), Missing("latent attention of its own kind", _DEEPSEEK)),
    (
        ("linear_num_key_heads", "linear_attn", "linear_conv"),
        Missing("linear attention", "Qwen3NextForCausalLM"),
    ),
    (("ssm_", "mamba_", "state_size", "wkv_"), Missing(_STATE_SPACE, _LLAMA)),
    (("conv_l_cache", "shortconv"), Missing(_CONVOLUTIONS, "Qwen3ForCausalLM")),
    (
        ("per_layer_input",),
        Missing("embeddings of each layer", "Gemma3ForCausalLM"),
    ),
    (
        ("num_experts", "num_local_experts", "n_routed_experts", "expert_count"),
        Missing("a mixture of experts of its own kind", _MIXTURE),
    ),
    (("layer_norm_eps", "layer_norm_epsilon", "layernorm_eps"), Missing(_LAYER_NORM, _LLAMA)),
)


def missing_of(name: str, fields: Iterable[str], known: Collection[str]) -> Missing | None:
    """What a model of this architecture needs, by its name or by the names of its config's fields.

    Args:
        name: of the architecture.
        fields: the names of its config's fields, and of those of its text.
        known: the architectures that run; None is returned where the nearest is not one of them.
    """
    if (found := UNSUPPORTED.get(name)) is None:
        lower = [field.lower() for field in fields]
        found = next(
            (
                missing
                for parts, missing in _SIGNS
                if missing.nearest in known and any(part in one for one in lower for part in parts)
            ),
            None,
        )
    return found if found is not None and found.nearest in known else None


def unknown_architecture(
    what: str,
    name: str,
    known: Collection[str],
    *,
    fields: Iterable[str] = (),
    families: Collection[str] | None = None,
) -> UnknownArchitectureError:
    """The error for a model of a family that is not known.

    Args:
        what: the model, as a sentence begins.
        name: of its architecture.
        known: the names that could stand there.
        fields: the names of its fields.
        families: the architectures that run; None: `known`.
    """
    missing = missing_of(name, fields, known if families is None else families)
    needs = ""
    if missing is not None:
        needs = f" It needs {missing.block}; the nearest family that runs is {missing.nearest}."
    name = escaped(name)
    return UnknownArchitectureError(
        f"{what} is of the architecture {name}, which Potluck cannot run yet.{needs}"
        f" It can run: {', '.join(sorted(known))}.",
        architecture=name,
        **({} if missing is None else {"block": missing.block, "nearest": missing.nearest}),
    )
