"""Small random models of every family, made with `transformers`, to compare the engine with."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
import transformers
from torch import Tensor

from potluck.engine.builder import StageWeights
from potluck.engine.reading import StoredTensor
from potluck.engine.stage import Stage
from potluck.engine.weights import load_weights
from potluck.ids import Digest, SessionId
from potluck.model.config import ModelConfig
from potluck.model.schemes import Cache, Scheme

CPU = torch.device("cpu")
SESSION = SessionId("chat")
CONTEXT = 96

# Small sizes; none is a multiple of another by chance.
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
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG_FACTORS = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0, 1.1, 1.3],
    "long_factor": [1.5, 2.0, 8.0],
}
SLIDING = {"sliding_window": 7}
GEMMA = {
    "head_dim": 16,
    "query_pre_attn_scalar": 21,
    "hidden_activation": "gelu_pytorch_tanh",
    **SLIDING,
}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.37,
    "attention_multiplier": 0.21,
    "logits_scaling": 5.0,
}
PICTURES = "Gemma3 with pictures"
TINY_EYE = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_MOE = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "head_dim": 16,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, own head size": ("Llama", {"head_dim": 16}),
    "llama, one key head, tied, odd": (
        "Llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 97},
    ),
    "llama, whole blocks": ("Llama", {"intermediate_size": 80, "head_dim": 16}),
    "llama, whole groups": ("Llama", {"hidden_size": 64, "intermediate_size": 96}),
    "llama, no shared key heads": ("Llama", {"num_key_value_heads": 4}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 scaling": ("Llama", {"rope_parameters": LLAMA_3, "head_dim": 32}),
    "llama, linear scaling": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}},
    ),
    "llama, dynamic scaling": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}},
    ),
    "mistral, window": ("Mistral", {"sliding_window": 9}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 20}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, one expert, window": (
        "Mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 1, **SLIDING},
    ),
    "qwen 2": (
        "Qwen2",
        {"tie_word_embeddings": True, "intermediate_size": 64, "num_key_value_heads": 4},
    ),
    "qwen 2, window in the last layers": ("Qwen2", QWEN_WINDOW),
    "qwen 2.5, yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen 3": ("Qwen3", {"head_dim": 16, "intermediate_size": 64}),
    "qwen 3, window": ("Qwen3", {"head_dim": 24, "num_key_value_heads": 1, **QWEN_WINDOW}),
    "qwen 3 moe": ("Qwen3Moe", {"norm_topk_prob": True, **QWEN_MOE}),
    "qwen 3 moe, some layers, odd": (
        "Qwen3Moe",
        {
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "num_key_value_heads": 1,
            "vocab_size": 97,
            "use_sliding_window": True,
            **SLIDING,
            **QWEN_MOE,
        },
    ),
    "phi 3": ("Phi3", {"sliding_window": 9}),
    "phi 3.5, long": (
        "Phi3",
        {
            "rope_parameters": {
                **LONG_FACTORS,
                "short_factor": [1.0] * 6,
                "long_factor": [3.0] * 6,
            },
            "original_max_position_embeddings": 32,
            "num_key_value_heads": 4,
        },
    ),
    "phi 4 mini, short, partial": (
        "Phi3",
        {
            "rope_parameters": {**LONG_FACTORS, "partial_rotary_factor": 0.75},
            "original_max_position_embeddings": 100,
            "num_attention_heads": 6,
            "tie_word_embeddings": True,
        },
    ),
    "gemma 2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma 2, one key head, odd": (
        "Gemma2",
        {**GEMMA, "num_key_value_heads": 1, "vocab_size": 97, "attn_logit_softcapping": 1.0},
    ),
    "gemma 3": (
        "Gemma3",
        {
            **GEMMA,
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "gemma 3, text of a model with pictures": (
        PICTURES,
        {**GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "olmo 2": ("Olmo2", {}),
    "olmo 2, no shared key heads, bias": (
        "Olmo2",
        {"num_key_value_heads": 4, "attention_bias": True},
    ),
    "smollm 3": ("SmolLM3", {"no_rope_layers": [1, 0, 1, 0]}),
    "smollm 3, window, biases": (
        "SmolLM3",
        {"attention_bias": True, "mlp_bias": True, "use_sliding_window": True, **SLIDING},
    ),
    "granite": ("Granite", MULTIPLIERS),
    "granite, tied, biases": (
        "Granite",
        {**MULTIPLIERS, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "exaone 4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}),
    "exaone 4, hybrid": ("Exaone4", {**SLIDING, "sliding_window_pattern": 3, "head_dim": 10}),
    "exaone 4, a window that no layer has": (
        "Exaone4",
        {**SLIDING, "layer_types": ["full_attention"] * 4},
    ),
    "falcon 3": ("Llama", {"head_dim": 20, "num_key_value_heads": 1, "intermediate_size": 100}),
}
WIDE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # For the larger blocks of GGUF. Rounding errors are larger than in the other comparisons.
    "llama, blocks of 256": ("Llama", {"hidden_size": 256, "intermediate_size": 512}),
}


class Sizes(TypedDict, total=False):
    """Sizes of a stage that a test may replace by smaller ones."""

    chunk: int
    slack: int
    max_sessions: int


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on disk in the Hub's format, and the same model in `transformers`."""

    model: Any
    config: ModelConfig
    tensors: tuple[StoredTensor, ...]

    def logits(self, ids: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.model(ids[None]).logits[0].float()

    def prompt(self, tokens: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(
            self.config.vocab_size, (tokens,), generator=generator, dtype=torch.int32
        )

    def stage(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        embedding: bool | None = None,
        head: bool | None = None,
        scheme: Scheme = "f32",
        cache: Cache = "full",
        device: torch.device = CPU,
        context: int = CONTEXT,
        cache_budget: int = 1 << 24,
        epoch: int = 1,
        **sizes: Unpack[Sizes],
    ) -> Stage:
        """Load these layers as a stage, with embedding and head if the model begins or ends there.

        `sizes` replace sizes of the stage, such as `slack`.
        """
        stop = self.config.num_layers if stop is None else stop
        weights = self.weights(
            range(start, stop),
            embedding=start == 0 if embedding is None else embedding,
            head=stop == self.config.num_layers if head is None else head,
            scheme=scheme,
            cache=cache,
            device=device,
        )
        return Stage(weights, context=context, cache_budget=cache_budget, epoch=epoch, **sizes)

    def weights(
        self,
        layers: range | None = None,
        *,
        embedding: bool = False,
        head: bool = False,
        scheme: Scheme = "f32",
        cache: Cache = "full",
        device: torch.device = CPU,
    ) -> StageWeights:
        """Load the weights of these layers; None: of all layers."""
        return load_weights(
            self.config,
            range(self.config.num_layers) if layers is None else layers,
            embedding=embedding,
            head=head,
            tensors=self.tensors,
            scheme=scheme,
            cache=cache,
            device=device,
        )


class Pipeline:
    """Stages cut at these layers. It returns the logits of every position."""

    def __init__(
        self,
        reference: Reference,
        cuts: Sequence[int] = (),
        scheme: Scheme = "f32",
        cache: Cache = "full",
        device: torch.device = CPU,
        context: int = CONTEXT,
        **sizes: Unpack[Sizes],
    ) -> None:
        layers = reference.config.num_layers
        bounds = [0, *cuts, layers]
        self.stages = [
            reference.stage(
                start,
                stop,
                head=False,
                scheme=scheme,
                cache=cache,
                device=device,
                context=context,
                **sizes,
            )
            for start, stop in pairwise(bounds)
        ]
        self._head = reference.stage(layers, layers, embedding=False, scheme=scheme, device=device)
        self.restart()

    def restart(self) -> None:
        """Start again with empty caches."""
        self.position = self._step = 0
        for stage in self.stages:
            stage.open(SESSION, epoch=1)

    def run(self, ids: Tensor) -> Tensor:
        """Run these next tokens and return their logits (T, V)."""
        x = ids
        for stage in self.stages:
            output = stage.forward(SESSION, x, epoch=1, step=self._step, position=self.position)
            assert output.hidden is not None
            x = output.hidden.tensor
        self.position, self._step = self.position + len(ids), self._step + 1
        with torch.inference_mode():
            return self._head.logits(x.to(self._head.weights.device)).cpu()

    def run_in_pieces(self, ids: Tensor, sizes: Sequence[int]) -> Tensor:
        return torch.cat([self.run(piece) for piece in ids.split(list(sizes))])


def make_model(
    variant: str,
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    changes: Mapping[str, Any] | None = None,
) -> Reference:
    """Write a random model of this variant, with changes, into the folder in the Hub's format."""
    family, fields = {**VARIANTS, **WIDE_VARIANTS}[variant]
    model = _random_model(family, {**fields, **(changes or {})})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # New models have norms of one and biases of zero, which could hide a mistake.
            noise = torch.randn(parameter.shape, generator=generator)
            center = 1.0 if "norm" in name else 0.0
            parameter.copy_((center + 0.25 * noise).to(dtype))
    # In the Hub's format: transformers renames its own tensors, such as those of experts.
    model.to(dtype).save_pretrained(folder)
    model.to(torch.float32)
    read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Reference(model, ModelConfig.from_dict(read), stored_tensors(folder))


def _random_model(family: str, changes: dict[str, Any]) -> Any:
    # A deep copy: a config of transformers changes its arguments.
    shape = deepcopy(SHAPE | {"pad_token_id": None} | changes)
    kind = "Gemma3TextConfig" if family.startswith("Gemma3") else f"{family}Config"
    config = getattr(transformers, kind)(**shape)
    name = f"{family}ForCausalLM"
    if family == PICTURES:
        name = "Gemma3ForConditionalGeneration"
        config = transformers.Gemma3Config(
            text_config=config.to_dict(), vision_config=TINY_EYE, image_token_index=10**6
        )
    # Eager attention is the implementation that supports a softcap.
    config._attn_implementation = "eager"
    return getattr(transformers, name)(config).eval()


def stored_tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Return a safetensors file's tensors (https://huggingface.co/docs/safetensors, Format)."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    tensors: list[StoredTensor] = []
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors.append(
            StoredTensor(
                name=name,
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                digest=Digest(hashlib.sha256(data[begin:end]).hexdigest()),
                path=path,
                offset=begin,
                nbytes=end - begin,
            )
        )
    return tuple(tensors)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest logit."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def off(logits: Tensor, exact: Tensor) -> float:
    """Return the median error of the tokens, relative to all logits.

    The median is used because rounding may let a router choose another expert: the error of that
    token is then large.
    """
    errors = (logits - exact).pow(2).mean(-1).sqrt()  # (T,)
    return (errors.median() / exact.pow(2).mean().sqrt()).item()
