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
_CONVOLUTIONS = "layers with short convolutions of their own kind"
_INDEXER = "attention to tokens that an indexer of its own kind chooses"
_STREAMS = "several residual streams of its own kind"
_LATENT_WINDOWS = "latent attention with windows"
_ALTERNATING = (
    "several residual streams that are predicted in turn (AltUp), and MLPs of few active gates"
)
_RELATIVE = "short convolutions beside attention, and scores by distance"
_HYBRID = "GraniteMoeHybridForCausalLM"
_LLAMA, _MIXTURE = "LlamaForCausalLM", "Qwen3MoeForCausalLM"
_DEEPSEEK, _SPARSE = "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM"

UNSUPPORTED: Mapping[str, Missing] = {
    "JambaForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "Zamba2ForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "MambaForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "Mamba2ForCausalLM": Missing(_STATE_SPACE, _HYBRID),
    "RwkvForCausalLM": Missing("layers with a recurrent state (RWKV)", _LLAMA),
    "Gemma3nForCausalLM": Missing(_ALTERNATING, "Gemma4ForCausalLM"),
    "Gemma3nForConditionalGeneration": Missing(_ALTERNATING, "Gemma4ForCausalLM"),
    "BailingHybridForCausalLM": Missing(
        "latent attention with a gate for each head, and decays that are made in one step",
        "KimiLinearForCausalLM",
    ),
    "MiniMaxForCausalLM": Missing("linear attention (lightning attention)", "MiniMaxM2ForCausalLM"),
    "HYV4ForCausalLM": Missing(f"{_STREAMS}, and latent attention with sinks and gates", _SPARSE),
    "LongcatFlashForCausalLM": Missing(
        "two latent attentions in each layer, and experts that give back what they read", _DEEPSEEK
    ),
    "AXK2ForCausalLM": Missing("norms with gates of their own", _SPARSE),
    "Dots3NoteForCausalLM": Missing(_LATENT_WINDOWS, _SPARSE),
    "Dots3NoteForConditionalGeneration": Missing(_LATENT_WINDOWS, _SPARSE),
    "MistralLarge4ForConditionalGeneration": Missing(
        "latents that layers share, and a rope with learned factors", _SPARSE
    ),
    "MuseSparkForConditionalGeneration": Missing("gates of residuals", "MuseGlimmerForCausalLM"),
    "InklingForCausalLM": Missing(_RELATIVE, _MIXTURE),
    "InklingForConditionalGeneration": Missing(_RELATIVE, _MIXTURE),
    "Inkling2ForCausalLM": Missing(_RELATIVE, _MIXTURE),
    "BeamForCausalLM": Missing("residuals with factors that differ from layer to layer", _MIXTURE),
    "LaraMiniForCausalLM": Missing(
        "a delta net beside attention with windows", "Qwen3NextForCausalLM"
    ),
    "OlmoHybridForCausalLM": Missing("a delta net of its own kind", "Qwen3NextForCausalLM"),
    "OlmoForCausalLM": Missing("norms without weights that subtract the mean", "Olmo2ForCausalLM"),
    "NanoChatForCausalLM": Missing("norms without weights", "Qwen3ForCausalLM"),
    "ZayaForCausalLM": Missing("attention in latents with convolutions", "LagunaForCausalLM"),
    "Phi4MultimodalForCausalLM": Missing("weights that are added for pictures", "Phi3ForCausalLM"),
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
    (("conv_l_cache", "shortconv"), Missing(_CONVOLUTIONS, "Lfm2ForCausalLM")),
    (
        ("per_layer_input",),
        Missing("embeddings of each layer, of its own kind", "Gemma4ForCausalLM"),
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
