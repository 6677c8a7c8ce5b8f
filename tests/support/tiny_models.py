"""Small random models of every family, made with `transformers`, to compare the engine with."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
import transformers
from model_variants import SHAPE, VARIANTS, WHOLE_CLASSES, WIDE_VARIANTS, WITH_PICTURES
from torch import Tensor

from potluck.engine.loading.reading import StoredTensor
from potluck.engine.loading.stage_weights import StageWeights
from potluck.engine.loading.weights import load_weights
from potluck.engine.stage import Stage
from potluck.ids import Digest, SessionId
from potluck.model.cache_shares import CacheShares
from potluck.model.checkpoint.stacked import Slice, stack_slices
from potluck.model.config import ModelConfig
from potluck.model.naming import decoder_names
from potluck.model.schemes import Cache, Scheme
from potluck.store.registry import LocalModel

CPU = torch.device("cpu")
SESSION = SessionId("chat")
CONTEXT = 96


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
        return Stage(
            weights,
            context=context,
            cache_budget=cache_budget,
            epoch=epoch,
            shares=CacheShares(config=self.config, scheme=scheme),
            **sizes,
        )

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
        self.session = SESSION
        for stage in self.stages:
            stage.open(SESSION, epoch=1)

    def fork(self, session: SessionId, position: int) -> None:
        """Go on with another session, which begins with the tokens of this one before a position."""
        for stage in self.stages:
            stage.open(session, epoch=1, source=self.session, position=position)
        self.turn_to(session)

    def turn_to(self, session: SessionId) -> None:
        """Go on with this session, from where all stages can."""
        self.session = session
        self.trim(min(stage.position(session) for stage in self.stages))

    def trim(self, position: int) -> None:
        """Go back to this position, or to one before it from where all stages can go on."""
        self.position = position
        for stage in self.stages * 2:  # a stage that goes back further takes those before it along
            stage.trim(self.session, self.position, epoch=1)
            self.position = stage.position(self.session)

    def run(self, ids: Tensor, prompt_end: int | None = None) -> Tensor:
        """Run these next tokens of a prompt that ends there, and return their logits (T, V)."""
        x = ids
        for stage in self.stages:
            output = stage.forward(
                self.session,
                x,
                epoch=1,
                step=self._step,
                position=self.position,
                prompt_end=prompt_end,
                ids=ids,
            )
            assert output.hidden is not None
            x = output.hidden.tensor
        self.position, self._step = self.position + len(ids), self._step + 1
        assert self._head.head is not None
        with torch.inference_mode():
            return self._head.head.logits(x.to(self._head.weights.device)).cpu()

    def run_in_pieces(self, ids: Tensor, sizes: Sequence[int]) -> Tensor:
        """Run these next tokens of a prompt in steps of these sizes, and return their logits (T, V)."""
        end = self.position + len(ids)
        return torch.cat([self.run(piece, end) for piece in ids.split(list(sizes))])


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
            # Decays of a delta net near one: what it forgets at once cannot be wrong later.
            center = 1.0 if "norm" in name else -2.0 if name.endswith("A_log") else 0.0
            parameter.copy_((center + 0.25 * noise).to(dtype))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.25 * torch.randn(buffer.shape, generator=generator))
            if name.endswith("tid2eid"):
                few = [
                    torch.randperm(model.config.n_routed_experts, generator=generator)
                    for _ in buffer
                ]
                buffer.copy_(torch.stack(few)[:, : buffer.shape[1]])
            if name.endswith("layer_scalar"):
                buffer.copy_(1.0 + 0.25 * torch.randn(buffer.shape, generator=generator))
    # In the Hub's format: transformers renames its own tensors, such as those of experts.
    if dtype is torch.float32:  # as it is; eyes may have complex numbers, which cannot be converted
        model.save_pretrained(folder)
    else:
        model.to(dtype).save_pretrained(folder)
        model.to(torch.float32)
    about = folder / "config.json"
    read = json.loads(about.read_text(encoding="utf-8"))
    if family not in WITH_PICTURES and not hasattr(transformers, f"{family}ForCausalLM"):
        read["architectures"] = [f"{family}ForCausalLM"]
        about.write_text(json.dumps(read), encoding="utf-8")
    text = getattr(model, "language_model", None)
    if hasattr(text, "lm_head"):  # a decoder with a head of its own, as in Llama 4
        model = text
    return Reference(model, ModelConfig.from_dict(read), stored_tensors(folder))


def has_fixed_heads(variant: str) -> bool:
    """Whether a variant's rotary factors fix the size of its heads."""
    family, fields = VARIANTS[variant]
    # Phi 3's projections are one matrix in the files as well.
    return family == "Phi3" or fields.get("rope_parameters", {}).get("rope_type") == "longrope"


def whole_blocks(variant: str) -> dict[str, Any]:
    """Changes that give a variant projections of whole blocks of rows, as all models of the Hub have them."""
    fields = VARIANTS[variant][1]
    changes: dict[str, Any] = {} if has_fixed_heads(variant) else {"hidden_size": 64}
    if "head_dim" in fields:
        changes["head_dim"] = 16
    if "index_block_size" in fields:
        changes["index_head_dim"] = 16
    if "moe_intermediate_size" in fields:
        changes["moe_intermediate_size"] = 32
    if "shared_expert_intermediate_size" in fields:
        changes["shared_expert_intermediate_size"] = 48
    if "shared_intermediate_size" in fields:
        changes["shared_intermediate_size"] = 48
    if "dense_intermediate_size" in fields:
        changes["dense_intermediate_size"] = 80
    if "intermediate_size_mlp" in fields:
        changes["intermediate_size_mlp"] = 96
    if "linear_value_head_dim" in fields:
        changes |= {"linear_key_head_dim": 16, "linear_value_head_dim": 32}
    return {**changes, "intermediate_size": 80}


def config_of(variant: str) -> ModelConfig:
    """The config of a variant. Its model is not made, which takes far longer."""
    config, architecture = _config(*VARIANTS[variant])
    return ModelConfig.from_dict({**config.to_diff_dict(), "architectures": [architecture]})


def _random_model(family: str, changes: dict[str, Any]) -> Any:
    config, architecture = _config(family, changes)
    # Eager attention is the implementation that supports a softcap.
    config._attn_implementation = "eager"
    # Some families have a config of their own and the model of another.
    kind = getattr(transformers, architecture, None)
    return (kind or transformers.AutoModelForCausalLM.from_config)(config).eval()


def _config(family: str, changes: dict[str, Any]) -> tuple[Any, str]:
    """The config in `transformers`, and the name of its architecture."""
    # A deep copy: a config of transformers changes its arguments.
    shape = deepcopy(SHAPE | {"pad_token_id": None} | changes)
    if family not in WITH_PICTURES:
        text = getattr(transformers, f"{family}TextConfig", None)
        made = text or getattr(transformers, f"{family}Config")
        return made(**shape), f"{family}ForCausalLM"
    text, kind, eye = WITH_PICTURES[family]
    config = getattr(transformers, f"{kind}Config")(
        text_config=getattr(transformers, text)(**shape).to_dict(),
        vision_config=eye,
        image_token_index=10**6,
        tie_word_embeddings=shape.get("tie_word_embeddings", False),
    )
    return config, f"{WHOLE_CLASSES.get(kind, kind)}ForConditionalGeneration"


def stored_tensors(folder: Path) -> tuple[StoredTensor, ...]:
    """Return a safetensors file's tensors (https://huggingface.co/docs/safetensors, Format)."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    tensors: list[StoredTensor] = []
    names = decoder_names(header)
    about = folder / "config.json"  # which a single tensor has not
    config = None
    if about.is_file():
        config = ModelConfig.from_dict(json.loads(about.read_text(encoding="utf-8")))
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        shape = tuple(entry["shape"])
        whole = Slice(name=names[name], shape=shape, offset=0, nbytes=end - begin)
        cut = None if config is None else stack_slices(config, whole.name, shape, whole.nbytes)
        for part in cut or (whole,):
            here = begin + part.offset
            tensors.append(
                StoredTensor(
                    name=part.name,
                    dtype=entry["dtype"],
                    shape=part.shape,
                    digest=Digest(hashlib.sha256(data[here : here + part.nbytes]).hexdigest()),
                    path=path,
                    offset=here,
                    nbytes=part.nbytes,
                )
            )
    return tuple(tensors)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest difference, relative to the largest logit."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def loaded(model: LocalModel, reference: Reference) -> Reference:
    """Return the same with config and tensors of this model."""
    tensors: list[StoredTensor] = []
    for entry in model.manifest.tensors:
        source = model.sources[entry.digest]
        tensors.append(
            StoredTensor(
                name=entry.name,
                dtype=entry.dtype,
                shape=entry.shape,
                digest=entry.digest,
                path=source.path,
                offset=source.offset,
                nbytes=source.nbytes,
            )
        )
    return replace(reference, config=model.config, tensors=tuple(tensors))


def off(logits: Tensor, exact: Tensor) -> float:
    """Return the median error of the tokens, relative to all logits.

    The median is used because rounding may let a router choose another expert: the error of that
    token is then large.
    """
    errors = (logits - exact).pow(2).mean(-1).sqrt()  # (T,)
    return (errors.median() / exact.pow(2).mean().sqrt()).item()
