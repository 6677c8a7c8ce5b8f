"""Read from a config which mixer each layer has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from potluck.model.common_fields import (
    read_fact,
    read_kinds,
    read_multiplier,
    read_norm_eps,
    read_softcap,
)
from potluck.model.families.facts import Family, OutputGate
from potluck.model.fields import Fields, invalid
from potluck.model.halves import FEED_FORWARDS, kinds_of_halves
from potluck.model.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_MULTIPLIER, MAX_POSITION
from potluck.model.mixing.block_index import read_block_index, read_head_index
from potluck.model.mixing.carried import share_keys
from potluck.model.mixing.channel_delta import channel_delta_layers, read_channel_delta
from potluck.model.mixing.delta_net_fields import delta_net_layers, read_delta_net
from potluck.model.mixing.indexer import read_followers
from potluck.model.mixing.latent import read_latent
from potluck.model.mixing.mamba import mamba_layers, read_mamba
from potluck.model.mixing.mixers import WEIGHED, AttentionSpec, BesideSpec, Mixer
from potluck.model.mixing.pooled import read_pooled
from potluck.model.mixing.rope import Rope, unturned_rope
from potluck.model.mixing.rope_fields import listed_ropes, read_named_ropes, read_ropes
from potluck.model.mixing.short_convolution import convolution_layers, read_convolution
from potluck.model.powers import power
from potluck.model.quantized import Quantization

_MAX_PATTERN = 64  # letters: EXAONE 4 has four


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixers:
    """The mixers of all layers."""

    layers: tuple[Mixer | None, ...]  # None: the layer is a feed-forward alone
    ropes: tuple[Rope, ...]  # the distinct ones: mixers have the index of theirs
    head_dim: int  # of attention


def read_mixers(
    fields: Fields,
    family: Family,
    hidden: int,
    max_position: int,
    stored: Quantization | None = None,
) -> Mixers:
    """The mixers of all layers of a model with these hidden states and so many positions.

    `stored` says how files hold the matrices.
    """
    if family.pooled:
        return _pooled(fields, family, hidden, max_position)
    if family.latent:
        return _latents(fields, family, hidden, max_position, stored)
    attention = _attention(fields, family, hidden, stored)
    windows = _windows(fields, family, fields.integer("num_hidden_layers", 1, MAX_LAYERS))
    full = _full_attention(fields, family, attention, windows)
    if family.sinks == "windowed":
        full = replace(full, has_sinks=False)
    ropes = read_ropes(
        fields,
        family,
        head_dim=full.head_dim,
        local_head_dim=attention.head_dim,
        max_position=max_position,
        windows=windows,
    )
    attentions: list[AttentionSpec] = []
    specs = [full if window is None else attention for window in windows]
    for spec, window, rope in zip(
        _with_heads(fields, family, specs), windows, ropes.layers, strict=True
    ):
        turned = spec.head_dim if rope is None else ropes.distinct[rope].dim
        if spec.index is not None and turned > spec.index.head_dim:
            raise invalid(
                "indexer_head_dim",
                spec.index.head_dim,
                f"must be at least {turned}, which rope turns",
            )
        if family.qk_norm_is_plain is True and rope != 0:
            spec = replace(spec, qk_norm=None, qk_norm_is_plain=False, qk_norm_eps=0.0)
        in_chunks = family.chunk_size is not None and window is not None
        attentions.append(
            replace(spec, window=window, in_chunks=in_chunks, rope=rope, rotary_dim=turned)
        )
    if family.head_index is not None:
        attentions = _with_index(fields, family.head_index, attentions)
    attentions = share_keys(fields, family, attentions)
    layers: list[Mixer | None] = list(attentions)
    if (delta_net := read_delta_net(fields, family, hidden, stored)) is not None:
        are_nets = delta_net_layers(fields, len(layers))
        layers = [delta_net if net else one for one, net in zip(layers, are_nets, strict=True)]
    if (mamba := read_mamba(fields, family, hidden, stored)) is not None:
        are_spaces = mamba_layers(fields, len(layers))
        if family.beside:
            both = [BesideSpec(attention=one, mamba=mamba) for one in attentions]
            return Mixers(layers=tuple(both), ropes=ropes.distinct, head_dim=attention.head_dim)
        layers = [mamba if space else one for one, space in zip(layers, are_spaces, strict=True)]
    if (convolution := read_convolution(fields, family, hidden)) is not None:
        are_short = convolution_layers(fields, len(layers))
        layers = [
            convolution if short else one for one, short in zip(layers, are_short, strict=True)
        ]
    if family.halves:
        kinds = kinds_of_halves(fields)
        layers = [
            None if kind in FEED_FORWARDS else one for one, kind in zip(layers, kinds, strict=True)
        ]
    return Mixers(layers=tuple(layers), ropes=ropes.distinct, head_dim=attention.head_dim)


def _latents(
    fields: Fields,
    family: Family,
    hidden: int,
    max_position: int,
    stored: Quantization | None,
) -> Mixers:
    spec, count = (
        read_latent(fields, family, hidden),
        fields.integer("num_hidden_layers", 1, MAX_LAYERS),
    )
    turned = (0,) * count
    if family.latent_unturned:
        distinct = (unturned_rope(spec.rotary_dim),)
    else:
        ropes = read_ropes(
            fields,
            family,
            head_dim=spec.rotary_dim,
            max_position=max_position,
            windows=(None,) * count,
        )
        distinct, turned = ropes.distinct, ropes.layers
    follower, follow = replace(spec, indexer=None, follows=spec.sees), [False] * count
    if spec.indexer is not None:
        follow = read_followers(fields, count)
        if spec.indexer.has_pools and any(follow):
            raise invalid("indexer_types", "shared", "must be full where an indexer chooses pools")
    pairs = zip(turned, follow, strict=True)
    layers: list[Mixer] = [
        replace(follower if follows else spec, rope=rope) for rope, follows in pairs
    ]
    if (net := read_channel_delta(fields, family, hidden, stored)) is not None:
        are_nets = channel_delta_layers(fields, family, count)
        layers = [net if is_net else one for one, is_net in zip(layers, are_nets, strict=True)]
    return Mixers(layers=tuple(layers), ropes=distinct, head_dim=spec.query_dim)


def _pooled(fields: Fields, family: Family, hidden: int, max_position: int) -> Mixers:
    layers = read_pooled(fields, hidden, fields.integer("num_hidden_layers", 1, MAX_LAYERS))
    dim = layers[0].rotary_dim
    ropes = read_named_ropes(fields, family, dim, max_position)
    return Mixers(layers=layers, ropes=ropes, head_dim=layers[0].head_dim)


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    """For each layer how many tokens a query sees; None: all."""
    switch, size = family.window_switch, family.chunk_size or "sliding_window"
    off = switch is not None and not fields.flag(switch, False)
    # `"sliding_window": null` also means no window; only a missing field gets the default.
    if family.windows == "none" or off or size not in fields:
        return (None,) * layers
    window = fields.integer(size, 1, MAX_POSITION)
    if family.layer_types and "layer_types" in fields:
        has_window = _layer_types(fields, family, layers)
    else:
        has_window = _pattern(fields, family, layers)
    if family.ends_full:
        has_window[-1] = False
    return tuple(window if has else None for has in has_window)


def _layer_types(fields: Fields, family: Family, layers: int) -> list[bool]:
    windowed = "sliding_attention" if family.chunk_size is None else "chunked_attention"
    others = ("conv",) if family.convolutions else ()
    kinds = read_kinds(fields, "layer_types", ("full_attention", windowed, *others), layers)
    return [kind == windowed for kind in kinds]


def _pattern(fields: Fields, family: Family, layers: int) -> list[bool]:
    match family.windows:
        case "none":
            return [False] * layers
        case "all":
            return [True] * layers
        case "last":
            first = fields.integer("max_window_layers", 0, MAX_LAYERS)
            return [layer >= first for layer in range(layers)]
        case "without rope":
            return [not rope for rope in listed_ropes(fields, layers)]
        case "with rope":
            return listed_ropes(fields, layers)
        case "pattern":
            return _repeated(fields, layers)


def _repeated(fields: Fields, layers: int) -> list[bool]:
    """Which layers have a window: all but each n-th, or those of letter `L` but the last layer."""
    name = "sliding_window_pattern"
    if not isinstance(fields.value(name), str):
        every, before, prefix = fields.integer(name, 1, MAX_LAYERS), 1, 0
        if (
            "prefix_dense_sliding_window_pattern" in fields
        ):  # of dense layers before those with experts
            before = fields.integer("prefix_dense_sliding_window_pattern", 1, MAX_LAYERS)
            prefix = min(fields.integer("first_k_dense_replace", 0, MAX_LAYERS), layers)
        first = [bool((layer + 1) % before) for layer in range(prefix)]
        return first + [bool((layer + 1) % every) for layer in range(layers - prefix)]
    letters = fields.text(name)
    if not 0 < len(letters) <= _MAX_PATTERN or set(letters) - set("LG"):
        raise invalid(name, letters, "must be a number, or a few letters L and G")
    local = [letters[layer % len(letters)] == "L" for layer in range(layers)]
    return [*local[:-1], False]


def _attention(
    fields: Fields, family: Family, hidden: int, stored: Quantization | None
) -> AttentionSpec:
    """What the attention of all layers has in common."""
    heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    head_dim = _head_dim(fields, hidden, heads)
    switch = family.qk_norm_switch
    qk_norm = family.qk_norm if switch is None or fields.flag(switch, False) else None
    is_plain = family.qk_norm_is_plain is not False and not fields.flag(WEIGHED, False)
    return AttentionSpec(
        hidden_size=hidden,
        block=family.attention_block,
        output_name=family.attention_output,
        heads=heads,
        kv_heads=_kv_heads(fields, heads),
        head_dim=head_dim,
        rotary_dim=head_dim,
        scale=_attention_scale(fields, family, head_dim),
        softcap=read_softcap(fields, family.attention_softcap),
        qk_norm=qk_norm,
        qk_norm_eps=0.0 if qk_norm is None else read_norm_eps(fields),
        qk_norm_names=family.qk_norm_names,
        qk_norm_after_rope=family.qk_norm_after_rope,
        qk_norm_is_plain=is_plain and qk_norm is not None,
        value_norm=family.value_norm,
        qkv_bias=read_fact(fields, family.qkv_bias),
        output_bias=read_fact(fields, family.output_bias),
        has_sinks=family.sinks is not False,
        sinks_name=family.sinks_name,
        is_fused=family.fused,
        has_gate=read_fact(fields, family.attention_gate),
        gate=_output_gate(fields, family),
        value_numbers=_value_numbers(fields, family, head_dim),
        value_scale=read_multiplier(fields, family.value_scale),
        index=read_block_index(fields, hidden, head_dim, stored) if family.block_index else None,
    )


def _output_gate(fields: Fields, family: Family) -> OutputGate | None:
    gate = family.output_gate
    if gate is None:
        return None
    if read_fact(fields, family.qkv_bias):
        raise invalid("attention_bias", True, "must be false beside gates of attention")
    if (name := family.gate_kind) is None or fields.value(name) is True:
        return gate
    kind = fields.text(name)
    if kind not in ("per-head", "per-element"):
        raise invalid(name, kind, "must be true, per-head or per-element")
    return replace(gate, of_heads=kind == "per-head")


def _value_numbers(fields: Fields, family: Family, head_dim: int) -> int | None:
    if family.value_dim is None:
        return None
    size = fields.integer(family.value_dim, 1, head_dim, head_dim)
    return None if size == head_dim else size


def _with_index(
    fields: Fields, name: str, attentions: Sequence[AttentionSpec]
) -> list[AttentionSpec]:
    """The same, with an indexer in the layers that `layer_types` calls so."""
    kinds = read_kinds(fields, "layer_types", ("full_attention", name), len(attentions))
    first = attentions[0]
    index = read_head_index(fields, first.hidden_size, first.head_dim, first.kv_heads)
    if first.rotary_dim > index.head_dim:
        what = f"must be at least {first.rotary_dim}, which rope turns"
        raise invalid("index_head_dim", index.head_dim, what)
    pairs = zip(attentions, kinds, strict=True)
    return [replace(spec, index=index if kind == name else None) for spec, kind in pairs]


def _with_heads(
    fields: Fields, family: Family, specs: Sequence[AttentionSpec]
) -> Iterator[AttentionSpec]:
    """The attention of all layers, with as many heads as lists of them say."""
    listed = [
        _listed_heads(fields, name, len(specs))
        for name in (family.layer_heads, family.layer_kv_heads)
    ]
    for layer, spec in enumerate(specs):
        heads, kv_heads = (None if one is None else one[layer] for one in listed)
        heads, kv_heads = heads or spec.heads, kv_heads or spec.kv_heads
        if heads % kv_heads:
            what = f"{heads} heads with {kv_heads} heads of keys"
            name = family.layer_kv_heads or family.layer_heads or ""
            raise invalid(name, what, "must divide the heads by those of keys")
        yield replace(spec, heads=heads, kv_heads=kv_heads)


def _listed_heads(fields: Fields, name: str | None, layers: int) -> tuple[int, ...] | None:
    if name is None or name not in fields:
        return None
    listed = fields.integers(name, 1, MAX_HEADS, MAX_LAYERS)
    if len(listed) < layers:
        raise invalid(name, len(listed), f"must have one entry for each of {layers} layers")
    return listed


def _full_attention(
    fields: Fields,
    family: Family,
    attention: AttentionSpec,
    windows: tuple[int | None, ...],
) -> AttentionSpec:
    """The attention of layers without a window, which may have sizes of its own.

    The family's fields say them, or `per_layer_config`, as transformers 5 writes it for each layer.
    """
    if family.full_head_dim is None:
        return attention
    shares = family.keys_are_values is not None and fields.flag(family.keys_are_values, False)
    kv_heads = attention.kv_heads
    if shares and family.full_kv_heads is not None:
        kv_heads = fields.integer(family.full_kv_heads, 1, MAX_HEADS, kv_heads)
    sizes = {(fields.integer(family.full_head_dim, 2, MAX_HEAD_DIM), kv_heads)}
    name, full = "per_layer_config", [layer for layer, one in enumerate(windows) if one is None]
    if full and name in fields:
        listed = fields.fields(
            name
        )  # by the layers' numbers, with as many digits as the last one's
        keys = {key.lstrip("0") or "0": key for key in listed.names}
        own = [
            listed.fields(key) if (key := keys.get(str(one))) is not None else Fields({})
            for one in full
        ]
        sizes = {
            (
                one.integer("head_dim", 2, MAX_HEAD_DIM, attention.head_dim),
                one.integer("num_key_value_heads", 1, MAX_HEADS, attention.kv_heads),
            )
            for one in own
        }
    if len(sizes) != 1:
        raise invalid(name, len(sizes), "must have one size for all layers with full attention")
    ((head_dim, kv_heads),) = sizes
    if attention.heads % kv_heads or head_dim % 2:
        what = f"{kv_heads} heads of {head_dim}"
        raise invalid(name, what, f"must divide {attention.heads} heads, and be of even size")
    return replace(attention, head_dim=head_dim, kv_heads=kv_heads, keys_are_values=shares)


def _attention_scale(fields: Fields, family: Family, head_dim: int) -> float:
    if family.attention_multiplier is not None:
        return read_multiplier(fields, family.attention_multiplier)
    scalar = float(head_dim)
    if family.query_scalar is not None:
        scalar = fields.number(family.query_scalar, 0.0, MAX_MULTIPLIER)
    return power(scalar, -0.5)


def _kv_heads(fields: Fields, heads: int) -> int:
    kv_heads = fields.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise invalid("num_key_value_heads", kv_heads, f"must divide num_attention_heads = {heads}")
    return kv_heads


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if "head_dim" not in fields and hidden % heads:
        raise invalid("hidden_size", hidden, f"must be a multiple of num_attention_heads = {heads}")
    head_dim = fields.integer("head_dim", 1, MAX_HEAD_DIM, hidden // heads)
    if head_dim % 2:
        raise invalid("head_dim", head_dim, "must be even, since rotary embedding rotates pairs")
    return head_dim
