"""What each layer of a model is made of: one `LayerSpec`, which the engine and the planner read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.model.cache_rows import State
from potluck.model.caches import CacheSizes, CacheSpec, RecurrentCache, no_cache
from potluck.model.families.facts import (
    UNGATED,
    Activation,
    ExpertFacts,
    LayerNorms,
    NormKind,
    ParallelNorms,
    gate_up_rows,
)
from potluck.model.mixing.carried import Carried, LayerInputSpec, cache_owners
from potluck.model.mixing.mixers import Mixer
from potluck.model.mixing.ngrams import NgramSpec
from potluck.model.mixing.streams import LayerStreams
from potluck.model.names import bias_name
from potluck.model.projection import Projection
from potluck.model.quantized import MatrixRole, Shape
from potluck.model.routing import Routing

RowScales = tuple[tuple[str, tuple[tuple[int, float], ...]], ...]
"""By names of tensors, without the layer's prefix: runs of rows, and what each run is multiplied by."""


def norm_tensors(weight: str, size: int, kind: NormKind) -> dict[str, Shape]:
    """The tensors of a norm of hidden states whose weight has this name."""
    names = (weight, bias_name(weight)) if kind == "biased layer" else (weight,)
    return dict.fromkeys(names, (size,))


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A gated MLP: down(activation(gate x) · (up x)); or one without gates: down(activation(up x))."""

    gate_up: Projection  # all gates before all ups, unless the activation has pairs; or ups alone
    down: Projection
    activation: Activation
    learned: tuple[str, ...] = ()  # what files call the numbers of the activation that were learned
    numbers: tuple[float, ...] = ()  # or these, where the config says them

    @property
    def projections(self) -> tuple[Projection, ...]:
        return self.gate_up, self.down

    @property
    def small_tensors(self) -> dict[str, Shape]:
        return dict.fromkeys(self.learned, (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The experts of a layer, and how a router chooses a few of them for each token."""

    routing: Routing
    intermediate_size: int  # of one expert
    shared_size: int = 0  # of the expert that all tokens go through; 0: there is none
    narrow_size: int = 0  # numbers that experts read and write; 0: those of the hidden states
    facts: ExpertFacts

    @property
    def part(self) -> float:
        """Which part of the chosen experts' matrices a token goes through."""
        return self.routing.per_token / self.routing.count


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A mixture of experts (MoE), each of which is an MLP."""

    hidden_size: int
    experts: Experts
    activation: Activation
    shared_activation: Activation | None = None  # of the shared expert, if it is another one

    @property
    def router(self) -> Projection:
        """A row for each expert, then the one that weighs the shared expert."""
        facts, routing = self.experts.facts, self.experts.routing
        names, rows = [facts.router], [routing.count]
        if facts.shared_gate is not None:
            names, rows = [*names, facts.shared_gate], [*rows, 1]
        parts = tuple(map(facts.name, names))
        return Projection(
            parts=parts, rows=tuple(rows), width=self.hidden_size, has_bias=facts.router_bias
        )

    @property
    def choice_bias(self) -> str | None:
        """The name of the tensor that is added to the probabilities for choosing."""
        facts = self.experts.facts
        if facts.bias is None or not self.experts.routing.has_bias:
            return None
        return facts.bias if facts.bias_beside else facts.name(facts.bias)

    @property
    def id_table(self) -> str | None:
        """The name of the table that says the experts of each token's id."""
        facts, vocabulary = self.experts.facts, self.experts.routing.vocabulary
        return None if vocabulary is None or facts.id_table is None else facts.name(facts.id_table)

    @property
    def router_norm(self) -> str | None:
        """The name of the weights of the norm before the router."""
        facts = self.experts.facts
        return None if facts.router_norm is None else facts.name(facts.router_norm)

    @property
    def expert_scales(self) -> str | None:
        """The name of what the factors of the chosen experts are multiplied by."""
        facts = self.experts.facts
        return None if facts.expert_scales is None else facts.name(facts.expert_scales)

    def expert(self, index: int) -> DenseSpec:
        facts, width = self.experts.facts, self.experts.narrow_size or self.hidden_size
        names = None if facts.fused is None else (facts.fused, facts.down)
        return self._mlp(f"experts.{index}", self.experts.intermediate_size, width, names)

    @property
    def narrow(self) -> tuple[Projection, Projection] | None:
        """What makes the few numbers that experts read of hidden states, and what makes these of their sum."""
        facts, size = self.experts.facts, self.experts.narrow_size
        if facts.narrow is None or size == 0:
            return None
        first, last = (facts.name(name) for name in facts.narrow[1:])
        hidden = self.hidden_size
        return (
            Projection(parts=(first,), rows=(size,), width=hidden),
            Projection(parts=(last,), rows=(hidden,), width=size),
        )

    @property
    def shared(self) -> DenseSpec | None:
        """The expert that all tokens go through."""
        name, size = self.experts.facts.shared, self.experts.shared_size
        if name is None or size == 0:
            return None
        whole = self._mlp(name, size, self.hidden_size, self.experts.facts.shared_names)
        return replace(whole, activation=self.shared_activation or self.activation)

    @property
    def projections(self) -> tuple[Projection, ...]:
        experts = [self.expert(index) for index in range(self.experts.routing.count)]
        experts += [] if self.shared is None else [self.shared]
        narrow = self.narrow or ()
        return self.router, *narrow, *(one for expert in experts for one in expert.projections)

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections."""
        routing, width = self.experts.routing, (self.hidden_size,)
        each, ids = (routing.count,), (routing.vocabulary or 0, routing.per_token)
        named: tuple[tuple[str | None, Shape], ...] = (
            (self.choice_bias, each),
            (self.expert_scales, each),
            (self.router_norm, width),
            (self.id_table, ids),
        )
        return {name: shape for name, shape in named if name is not None}

    def _mlp(
        self,
        name: str,
        size: int,
        hidden: int,
        names: tuple[str, ...] | None = None,
    ) -> DenseSpec:
        facts = self.experts.facts
        prefix, has_bias = facts.name(f"{name}."), facts.expert_bias
        *first, last = names or (facts.gate, facts.up, facts.down)
        if self.activation in UNGATED:
            first = first[-1:]
        parts, rows = [prefix + one for one in first], gate_up_rows(self.activation, size)
        down = Projection(parts=(prefix + last,), rows=(hidden,), width=size, has_bias=has_bias)
        return DenseSpec(
            gate_up=Projection(
                parts=tuple(parts),
                rows=(rows // len(parts),) * len(parts),
                width=hidden,
                has_bias=has_bias,
            ),
            down=down,
            activation=self.activation,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """An MLP and a mixture of experts side by side, each between norms of its own (Gemma 4).

    after_dense(dense(before_dense(x))) + after_moe(moe(before_moe(x))), where the router reads x itself
    """

    dense: DenseSpec
    moe: MoeSpec
    norms: ParallelNorms[str]

    @property
    def activation(self) -> Activation:
        return self.dense.activation

    @property
    def projections(self) -> tuple[Projection, ...]:
        return *self.dense.projections, *self.moe.projections

    @property
    def small_tensors(self) -> dict[str, Shape]:
        """Its tensors beside the projections."""
        norms = {f"{name}.weight": (self.moe.hidden_size,) for name in self.norms.present}
        return norms | self.moe.small_tensors


FeedForward = DenseSpec | MoeSpec | ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """All that is known of a decoder layer before its weights are loaded. One of its two parts may be missing.

    hidden += multiplier · after_mixer(mixer(before_mixer(hidden)))
    hidden += multiplier · after_mlp(feed_forward(before_mlp(hidden)))
    hidden += inputs(hidden)
    hidden *= scale

    Side by side, the feed-forward reads before_mixer(hidden), as the mixer does, before either is added.
    With several residual streams, `streams` stands in place of what is added, and unless they are balanced of norms. Of
    a rank's part of a layer, what mixer or feed-forward give is summed over the ranks before anything else is done with it.
    """

    hidden_size: int
    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: LayerNorms[str]  # where they stand, and what files call them
    norm_eps: float
    after_norm_eps: float | None = (
        None  # of the norms after mixer and feed-forward, if it is another
    )
    norm_kind: NormKind = "root mean square"
    is_side_by_side: bool = False
    residual_multiplier: float = 1.0  # multiplies what mixer and feed-forward add to hidden states
    scale: str | None = None  # what files call the number that is multiplied with at last
    row_scales: RowScales = ()  # what matrices are multiplied by when they are loaded
    streams: LayerStreams | None = None  # None: there is one residual stream
    carried: Carried | None = None  # what goes along behind hidden states
    inputs: LayerInputSpec | None = None  # the layer's own embeddings
    ngrams: NgramSpec | None = None  # what is added to the streams before the mixer
    # A rank of a group holds a part of it: what it gives is summed over all ranks (`shares.py`).
    sums_mixer: bool = False
    sums_feed_forward: bool = False

    def tensors(self) -> dict[str, Shape]:
        """Names, without the layer's prefix, and shapes of the layer's tensors in files."""
        tensors: dict[str, Shape] = dict(
            tensor for projection in self.projections for tensor in projection.tensors()
        )
        for name in self.norms.present:
            tensors |= norm_tensors(f"{name}.weight", self.hidden_size, self.norm_kind)
        tensors |= {} if self.scale is None else {self.scale: (1,)}
        for block in () if self.streams is None else self.streams.blocks:
            tensors |= block.tensors()
        tensors |= {} if self.ngrams is None else self.ngrams.tensors()
        tensors |= {} if self.inputs is None else self.inputs.tensors()
        for part in self._parts:
            tensors |= part.small_tensors
        return tensors

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The matrices of mixer and feed-forward."""
        return tuple(projection for part in self._parts for projection in part.projections)

    @property
    def _parts(self) -> tuple[Mixer | FeedForward, ...]:
        return tuple(part for part in (self.mixer, self.feed_forward) if part is not None)

    def cache(self, sizes: CacheSizes) -> CacheSpec:
        """What a session caches in this layer."""
        if self.mixer is None:
            return no_cache(sizes)
        cache = self.mixer.cache(sizes)
        if self.ngrams is None:
            return cache
        assert isinstance(cache, RecurrentCache)
        return replace(cache, row=State(shapes=(*cache.row.shapes, *self.ngrams.state)))

    @property
    def kind(self) -> "LayerSpec":
        """This layer as far as its cost depends on it."""
        ngrams = None if self.ngrams is None else self.ngrams.kind
        inputs, feed_forward = self.inputs and self.inputs.kind, self.feed_forward
        if isinstance(feed_forward, DenseSpec):
            feed_forward = replace(feed_forward, numbers=(0.0,) * len(feed_forward.numbers))
        return replace(
            self,
            mixer=self.mixer and self.mixer.kind,
            feed_forward=feed_forward,
            ngrams=ngrams,
            inputs=inputs,
        )

    @property
    def shared_tensors(self) -> dict[str, Shape]:
        """Full names and shapes of tensors that other layers have too."""
        return {} if self.inputs is None else dict((self.inputs.table, self.inputs.norm))

    @property
    def needs_ids(self) -> bool:
        """Whether it looks at the tokens' ids."""
        feed_forward = self.feed_forward
        by_ids = isinstance(feed_forward, MoeSpec) and feed_forward.id_table is not None
        return by_ids or self.ngrams is not None or self.inputs is not None

    @property
    def width(self) -> int:
        """Numbers of a token that come in, and that go out."""
        if self.carried is not None:
            return self.carried.width
        return self.hidden_size if self.streams is None else self.streams.width


def owned_caches(layers: Sequence[LayerSpec], sizes: CacheSizes) -> list[CacheSpec]:
    """What a session caches in a stage of these layers, each cache once."""
    owners = cache_owners([layer.mixer for layer in layers], sizes.number_bytes)
    return [layers[owner].cache(sizes) for owner in sorted(set(owners))]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """The facts on which the cost of a layer depends. Layers of equal kinds cost the same."""

    spec: LayerSpec  # with the `kind` of its mixer
    finer: frozenset[MatrixRole] = frozenset()  # matrices that may be held in more bits than others

    @property
    def has_experts(self) -> bool:
        return isinstance(self.spec.feed_forward, MoeSpec | ParallelSpec)
