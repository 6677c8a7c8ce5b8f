"""Small random models of every family, made with `transformers`, which the engine is compared with."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from potluck.engine.stage import Stage
from potluck.engine.weights import StoredTensor, load_weights
from potluck.ids import Digest, SessionId
from potluck.model.config import ModelConfig

CPU = torch.device("cpu")
SESSION = SessionId("chat")
CONTEXT = 96

# Small, and nothing a multiple of something else by chance.
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
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, own head size": ("Llama", {"head_dim": 16}),
    "llama, one key head, tied, odd": (
        "Llama",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "vocab_size": 97},
    ),
    "llama, no shared key heads": ("Llama", {"num_key_value_heads": 4}),
    "llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 scaling": ("Llama", {"rope_parameters": LLAMA_3, "head_dim": 32}),
    "llama, linear scaling": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}},
    ),
    "mistral, window": ("Mistral", {"sliding_window": 9}),
    "mistral, no window": ("Mistral", {"sliding_window": None, "head_dim": 20}),
    "qwen 2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen 2, window in the last layers": ("Qwen2", QWEN_WINDOW),
    "qwen 3": ("Qwen3", {"head_dim": 16}),
    "qwen 3, window": ("Qwen3", {"head_dim": 24, "num_key_value_heads": 1, **QWEN_WINDOW}),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on disk as the Hub has it, and the same in `transformers`."""

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
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        context: int = CONTEXT,
        cache_budget: int = 1 << 24,
        epoch: int = 1,
    ) -> Stage:
        """These layers; with embedding and head where the model has its ends, unless told."""
        stop = self.config.num_layers if stop is None else stop
        weights = load_weights(
            self.config,
            range(start, stop),
            embedding=start == 0 if embedding is None else embedding,
            head=stop == self.config.num_layers if head is None else head,
            tensors=self.tensors,
            dtype=dtype,
            device=device,
        )
        return Stage(weights, context=context, cache_budget=cache_budget, epoch=epoch)


class Pipeline:
    """Stages cut at these layers, whose logits are seen at every position."""

    def __init__(
        self,
        reference: Reference,
        cuts: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        layers = reference.config.num_layers
        bounds = [0, *cuts, layers]
        self.stages = [
            reference.stage(start, stop, head=False, dtype=dtype, device=device)
            for start, stop in pairwise(bounds)
        ]
        self._head = reference.stage(layers, layers, embedding=False, dtype=dtype, device=device)
        self.position = self._step = 0
        for stage in self.stages:
            stage.open(SESSION, epoch=1)

    def run(self, ids: Tensor) -> Tensor:
        """Logits (T, V) of these further tokens."""
        x = ids
        for stage in self.stages:
            output = stage.forward(SESSION, x, epoch=1, step=self._step, position=self.position)
            assert output.hidden is not None
            x = output.hidden
        self.position, self._step = self.position + len(ids), self._step + 1
        with torch.inference_mode():
            return self._head.logits(x.to(self._head.weights.device)).cpu()

    def run_in_pieces(self, ids: Tensor, sizes: Sequence[int]) -> Tensor:
        return torch.cat([self.run(piece) for piece in ids.split(list(sizes))])


def make_model(
    variant: str, folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Reference:
    """Write a random model of this variant into the folder, as the Hub has them."""
    family, changes = VARIANTS[variant]

    config = getattr(transformers, f"{family}Config")(**SHAPE | changes)
    config.architectures = [f"{family}ForCausalLM"]
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Fresh models have norms of one and biases of zero, behind which a mistake could hide.
            noise = torch.randn(parameter.shape, generator=generator)
            center = 1.0 if "norm" in name else 0.0
            parameter.copy_((center + 0.25 * noise).to(dtype))
    model.save_pretrained(folder)
    written = {name: p.to(dtype).contiguous() for name, p in model.named_parameters()}
    save_file(written, folder / "model.safetensors")
    read = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Reference(model, ModelConfig.from_dict(read), stored_tensors(folder))


def stored_tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """What a safetensors file holds (https://huggingface.co/docs/safetensors, Format)."""
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
