"""A plan with what it was made for: the value that planning hands to a deployment."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from potluck.cluster.driver.attached import Speed
from potluck.cluster.master.measurements import PROFILE_TOKENS
from potluck.ids import ModelId, NodeId
from potluck.model.caches import MOST_MOVED_BYTES, cache_sizes, session_bytes
from potluck.model.config import ModelConfig
from potluck.model.schemes import Cache, Scheme
from potluck.plan.apart import USUAL_PROMPT, Reading, Sizes
from potluck.plan.cost import Links, ModelShape
from potluck.plan.depth import token_after_ms
from potluck.plan.prefill import best_chunk, time_to_first_token_ms
from potluck.plan.shape import shape_of
from potluck.plan.stages import Plan
from potluck.plan.viewing import Viewing
from potluck.store.registry import LocalModel

ModelInUse: TypeAlias = tuple[ModelId, Scheme, Cache, int]
"""A model, and how it is computed, with its context: a conversation goes on if this is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, with the model and the settings that it was made for."""

    model: LocalModel
    scheme: Scheme
    cache: Cache
    note: str  # why this scheme was chosen, and which devices are left out; else empty
    warnings: tuple[str, ...] = ()  # what the user asked for and does not get, in sentences
    context: int  # tokens
    plan: Plan
    names: Mapping[NodeId, str]  # the name of every computer that was considered
    prompt: int | None = None  # tokens of the prompt that people are told of; None: a usual one
    first_token_ms: float = 0.0  # of an answer to it
    reading: Reading | None = None  # who reads long prompts for the stages of the plan
    may_have_readers: bool = False  # whether one that pays is chosen without being asked for
    readers_weighed: bool = False  # whether all that were here could have been chosen
    may_have_viewer: bool = False  # whether one that pays reads pictures
    viewing: Viewing | None = None  # who reads pictures for the first stage
    replicas: tuple[Plan, ...] = ()  # the other times that the model is held
    replicas_wanted: int = 1  # how many times it is to be held
    together_tokens_per_s: float | None = (
        None  # of one answer, if it were held once by all computers
    )

    def of_replica(self, plan: Plan) -> "Planned":
        """The same, with the plan of another replica."""
        return replace(self, plan=plan, reading=None, viewing=None, replicas=())

    @property
    def speed(self) -> Speed:
        """How fast it is, as planned, for one answer."""
        tokens = min(USUAL_PROMPT, self.context)
        prompt_s = self.prompt_ms(tokens) / 1000
        return Speed(token_s=self.plan.token_ms / 1000, prompt_token_s=prompt_s / max(1, tokens))

    @property
    def shape(self) -> ModelShape:
        """The sizes of the model, as it was planned."""
        return shape_of(self.model.config, self.scheme, context=self.context, cache=self.cache)

    def prompt_ms(self, tokens: int, *, cached: int = 0) -> float:
        """The time to the first token after a prompt with so many new tokens."""
        return time_to_first_token_ms(
            self.shape,
            self.plan,
            prompt_tokens=tokens,
            chunk_tokens=self.chunk_tokens(tokens),
            measured_tokens=PROFILE_TOKENS,
            cached=cached,
        )

    def token_ms(self, cached: int) -> float:
        """The time of a token of one answer after so many others."""
        return token_after_ms(self.shape, self.plan, cached)

    @property
    def of_readers(self) -> "Planned | None":
        """The same, with the plan of those that read prompts."""
        if self.reading is None:
            return None
        return replace(self, plan=self.reading.plan, reading=None, viewing=None)

    @property
    def of_viewer(self) -> "Planned | None":
        """The same, with the plan of the one that reads pictures."""
        if self.viewing is None:
            return None
        return replace(self, plan=self.viewing.plan, reading=None, viewing=None)

    @property
    def model_in_use(self) -> ModelInUse:
        return self.model.manifest.model_id, self.scheme, self.cache, self.context

    def is_of(self, model: LocalModel, scheme: Scheme) -> bool:
        """Whether layers that it has in memory could be used for this model."""
        return (self.model.manifest.model_id, self.scheme) == (model.manifest.model_id, scheme)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Each stage's computer, with the device where one has several stages."""
        stages = self.plan.stages
        nodes = Counter(stage.node for stage in stages)
        return tuple(
            f"{stage.name}/{stage.device}" if nodes[stage.node] > 1 else stage.name
            for stage in stages
        )

    @property
    def pipeline_names(self) -> tuple[str, ...]:
        """Of what a token visits one after the other, the computers; those of a group together."""
        names: list[str] = []
        for stage, name in zip(self.plan.stages, self.stage_names, strict=True):
            if stage.rank == 0:
                names.append(name)
            else:
                names[-1] += f" + {name}"
        return tuple(names)

    def chunk_tokens(self, prompt_tokens: int) -> int:
        """How many tokens each chunk of a prompt of this length has."""
        return best_chunk(
            self.shape, self.plan, prompt_tokens=prompt_tokens, measured_tokens=PROFILE_TOKENS
        )


def sizes_of(
    config: ModelConfig,
    scheme: Scheme,
    cache: Cache,
    shape: ModelShape,
    links: Links,
    context: int,
    prompt: int | None = None,
) -> Sizes:
    """What the times of prompts depend on that are read by others; `prompt`: of how many tokens people are told."""
    caches = [layer.cache(cache_sizes(scheme, cache)) for layer in config.layers]
    return Sizes(
        shape=shape,
        links=links,
        cache_bytes=lambda tokens: session_bytes(caches, tokens),
        measured_tokens=PROFILE_TOKENS,
        context=context,
        most_bytes=MOST_MOVED_BYTES,
        prompt=None if prompt is None else min(prompt, context - 1),
        is_int8=cache == "int8",
    )
