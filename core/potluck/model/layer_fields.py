"""Read from a config what each layer is made of."""

from collections.abc import Sequence
from dataclasses import replace

from potluck.model.common_fields import read_multiplier, read_norm_eps
from potluck.model.expert_fields import chosen_by_id, read_expert_layers, read_id_layers
from potluck.model.families.facts import Family, NormKind
from potluck.model.fields import Fields, invalid
from potluck.model.layers import DenseSpec, Experts, LayerSpec, MoeSpec, ParallelSpec
from potluck.model.limits import MAX_VOCAB
from potluck.model.mixing.carried import Carried, read_layer_inputs
from potluck.model.mixing.delta_net import DeltaNetSpec
from potluck.model.mixing.mixers import AttentionSpec, BesideSpec, Mixer
from potluck.model.mixing.ngrams import NgramSpec, read_ngrams
from potluck.model.mixing.streams import LayerStreams, Streams
from potluck.model.mlp_fields import (
    limited,
    read_dense,
    read_expert_activation,
    read_limits,
    read_mlps,
)
from potluck.model.multipliers import read_row_scales


def read_norm_kind(fields: Fields, family: Family) -> NormKind:
    """The kind of all norms of hidden states."""
    switch = family.norm_switch
    return family.norm_kind if switch is None or switch not in fields else "root mean square"


def read_layers(
    fields: Fields,
    family: Family,
    hidden: int,
    mixers: Sequence[Mixer | None],
    experts: Experts | None,
    streams: Streams | None,
    carried: Carried | None,
    *,
    splits_gates: bool,
) -> tuple[LayerSpec, ...]:
    """What each layer is made of."""
    dense = read_dense(fields, family, hidden, splits_gates=splits_gates)
    moe, norms = None, family.norms
    if experts is not None:
        activation = read_expert_activation(fields, family, experts) or dense.activation
        moe = MoeSpec(hidden_size=hidden, experts=experts, activation=activation)
        if (beside := experts.facts.beside) is not None:
            moe = ParallelSpec(dense=dense, moe=moe, norms=beside)
            norms = replace(norms, before_mlp=None)
        if experts.facts.norm_after is not None:
            norms = replace(norms, after_mlp=experts.facts.norm_after)
    have_experts = read_expert_layers(fields, experts, len(mixers))
    limits = read_limits(fields, family, len(mixers))
    mixtures: list[MoeSpec | ParallelSpec | None] = [moe] * len(mixers)
    if isinstance(moe, MoeSpec):
        by_id = chosen_by_id(moe, fields.integer("vocab_size", 1, MAX_VOCAB))
        are_by_id = read_id_layers(fields, moe.experts, len(mixers))
        mixtures = [by_id if is_by_id else moe for is_by_id in are_by_id]
    ngrams = {} if streams is None else _ngrams(fields, streams, mixers)
    after = family.after_norm_eps
    after_eps = None if after is None else fields.number(after, 0.0, 1.0)
    take = [isinstance(mixer, AttentionSpec) and mixer.takes is not None for mixer in mixers]
    mlps = read_mlps(fields, family, hidden, take, splits_gates=splits_gates)
    inputs = read_layer_inputs(fields, family, hidden, dense.activation, len(mixers))
    layers = tuple(
        LayerSpec(
            hidden_size=hidden,
            mixer=mixer,
            feed_forward=limited(
                (mixtures[layer] or dense) if has_experts else mlps[layer], limits[layer]
            ),
            norms=norms if has_experts else family.norms,
            norm_eps=read_norm_eps(fields),
            after_norm_eps=after_eps,
            norm_kind=read_norm_kind(fields, family),
            is_side_by_side=family.side_by_side,
            residual_multiplier=read_multiplier(fields, family.residual_multiplier),
            scale=family.layer_scale,
            streams=None if streams is None else LayerStreams.of(streams),
            carried=carried,
            inputs=inputs[layer],
            ngrams=ngrams.get(layer),
        )
        for layer, (mixer, has_experts) in enumerate(zip(mixers, have_experts, strict=True))
    )
    if family.halves:
        return tuple(map(_half, layers))
    return (
        tuple(_scaled(fields, layer, dense) for layer in layers) if family.multipliers else layers
    )


def _half(layer: LayerSpec) -> LayerSpec:
    """The layer without a feed-forward, unless it has no mixer, and with the norms of what is left."""
    if layer.mixer is None:
        return replace(layer, norms=layer.norms.of_mlp)
    return replace(layer, feed_forward=None, norms=layer.norms.of_mixer)


def _scaled(fields: Fields, layer: LayerSpec, dense: DenseSpec) -> LayerSpec:
    """The layer with what its matrices are multiplied by."""
    assert isinstance(layer.mixer, BesideSpec)
    return replace(layer, row_scales=read_row_scales(fields, layer.mixer, dense))


def _ngrams(
    fields: Fields, streams: Streams, mixers: Sequence[Mixer | None]
) -> dict[int, NgramSpec]:
    found = read_ngrams(fields, streams, len(mixers))
    for layer in found:
        if not isinstance(mixers[layer], DeltaNetSpec):
            raise invalid("ple_layer_ids", layer + 1, "must be a layer with linear attention")
    return found
