"""What a config says of rope (`rope.py`), and which layer has which.

Two forms of the fields are read: `rope_theta` with `rope_scaling`, and since transformers 5
`rope_parameters`, which may hold one set of fields for each kind of layer. Checked against
`transformers/modeling_rope_utils.py`, which also says what a missing field means.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from potluck.model.common_fields import read_dense_layers, read_each
from potluck.model.families.facts import Family
from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_FACTOR, MAX_LAYERS, MAX_POSITION, MAX_THETA, MIN_FACTOR
from potluck.model.mixing.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    QueryScale,
    Rope,
    Ropes,
    YarnScaling,
    unturned_rope,
)
from potluck.model.powers import natural_logarithm, power

_NO_FIELDS = Fields({})


def read_ropes(
    fields: Fields,
    family: Family,
    *,
    head_dim: int,
    max_position: int,
    windows: tuple[int | None, ...],
    local_head_dim: int | None = None,
) -> Ropes:
    """The ropes of all layers.

    `local_head_dim` is that of layers with a window where their theta is their own; None: it is the same.
    """
    parameters = _parameters(fields)
    if family.layer_thetas is not None and family.layer_thetas in fields:
        rope = _rope(fields, parameters, family, head_dim, max_position)
        thetas = read_each(fields, family.layer_thetas, 1.0, MAX_THETA, len(windows))
        return _with_thetas(rope, thetas)
    if family.local_theta is None:
        distinct, unturned = [_rope(fields, parameters, family, head_dim, max_position)], None
        if (scaled := _unturned(fields, family, head_dim)) is not None:
            distinct, unturned = [*distinct, scaled], 1
        return Ropes(
            distinct=tuple(distinct),
            layers=tuple(0 if has else unturned for has in _has_rope(fields, family, windows)),
        )
    nested = "full_attention" in parameters
    everywhere = parameters.fields("full_attention") if nested else parameters
    nearby = parameters.fields("sliding_attention") if "sliding_attention" in parameters else None
    theta = fields.number(family.local_theta, 1.0, MAX_THETA)
    local = _rope(
        Fields({"rope_theta": theta}),
        nearby or _NO_FIELDS,
        family,
        local_head_dim or head_dim,
        max_position,
    )
    return Ropes(
        distinct=(_rope(fields, everywhere, family, head_dim, max_position), local),
        layers=tuple(0 if window is None else 1 for window in windows),
    )


def _with_thetas(rope: Rope, thetas: Sequence[float | None]) -> Ropes:
    """This rope with a theta for each layer."""
    distinct = sorted({theta for theta in thetas if theta is not None})
    return Ropes(
        distinct=tuple(replace(rope, theta=theta) for theta in distinct) or (rope,),
        layers=tuple(None if theta is None else distinct.index(theta) for theta in thetas),
    )


def read_named_ropes(
    fields: Fields, family: Family, dim: int, max_position: int
) -> tuple[Rope, Rope]:
    """The ropes of layers without pools, and of the others (DeepSeek V4): `main` and `compress`, or by two thetas.

    Scaling is that of the second one. It does not change how large its cosines and sines are.
    """
    parameters = _parameters(fields)
    if "main" in parameters and "compress" in parameters:
        first, second = parameters.fields("main"), parameters.fields("compress")
    else:
        theta = fields.number("compress_rope_theta", 1.0, MAX_THETA)
        first, second = _NO_FIELDS, parameters.having({"rope_theta": theta})
    second = second.over({"attention_factor": 1.0})
    plain = Fields({name: fields.value(name) for name in ("rope_theta",)})
    main, compress = (_rope(plain, one, family, dim, max_position) for one in (first, second))
    return main, compress


def _unturned(fields: Fields, family: Family, head_dim: int) -> Rope | None:
    """A rope that turns nothing, and scales queries (Llama 4); None: layers without rope have no such scale."""
    switch = family.unturned_scale
    # The first files have the number 4 there, and mean that it is so.
    if switch is None or not (fields.value(switch) == 4 or fields.flag(switch, False)):
        return None
    scale = QueryScale(
        beta=fields.number("attn_scale", 0.0, MAX_FACTOR),
        original_max_position=fields.integer("floor_scale", 1, MAX_POSITION),
        first=1,
    )
    return unturned_rope(head_dim, scale)


def _parameters(fields: Fields) -> Fields:
    for name in ("rope_parameters", "rope_scaling"):
        if name in fields:
            return fields.fields(name)
    return _NO_FIELDS


def _has_rope(fields: Fields, family: Family, windows: tuple[int | None, ...]) -> list[bool]:
    match family.rope_layers:
        case "all":
            return [True] * len(windows)
        case "none":
            return [False] * len(windows)
        case "listed":
            return listed_ropes(fields, len(windows))
        case "named":
            kind = fields.value("position_embedding_type")
            return [kind == "rope"] * len(windows)
        case "windowed or dense":
            everywhere = fields.value("prefix_dense_sliding_window_pattern") == 1
            dense = read_dense_layers(fields, len(windows))
            turned = zip(windows, dense, strict=True)
            return [window is not None or (everywhere and one) for window, one in turned]
        case "windowed":
            # The field counts even if no layer has a window.
            has_windows = "sliding_window" in fields
            return [not has_windows or window is not None for window in windows]


def score_factor(fields: Fields) -> float:
    """What yarn multiplies the scores of latent attention by: the square of its magnitude (DeepSeek-V2)."""
    parameters = _parameters(fields)
    if _kind(parameters) == "default" or "mscale_all_dim" not in parameters:
        return 1.0
    return (
        _magnitude(_factor(parameters), parameters.number("mscale_all_dim", 0.0, MAX_FACTOR)) ** 2
    )


def listed_ropes(fields: Fields, layers: int) -> list[bool]:
    """For each layer whether it has a rope: `no_rope_layers` has a 1 there, or all but each n-th have."""
    if "no_rope_layers" in fields and fields.value("no_rope_layers") != []:
        listed = fields.integers("no_rope_layers", 0, 1, MAX_LAYERS)
        if len(listed) < layers:
            raise invalid(
                "no_rope_layers", len(listed), f"must have one entry for each of {layers} layers"
            )
        return [bool(has) for has in listed[:layers]]
    interval = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS)
    return [bool((layer + 1) % interval) for layer in range(layers)]


def _rope(
    fields: Fields, parameters: Fields, family: Family, head_dim: int, max_position: int
) -> Rope:
    theta = fields.number("rope_theta", 1.0, MAX_THETA, 10000.0)
    theta = parameters.number("rope_theta", 1.0, MAX_THETA, theta)
    dim = head_dim
    if family.partial_rotary:
        whole = fields.integer("rotary_dim", 2, head_dim, head_dim) / head_dim  # MiniMax says it so
        factor = fields.number("partial_rotary_factor", 0.0, 1.0, whole)
        factor = parameters.number("partial_rotary_factor", 0.0, 1.0, factor)
        dim = int(head_dim * factor)
        if dim < 2 or dim % 2:
            raise invalid(
                "partial_rotary_factor", factor, f"must leave an even part of {head_dim} values"
            )
    kind = _kind(parameters)
    kind = family.scaling_names.get(kind, kind)
    query_scale = _query_scale(parameters, max_position)
    if kind == "dynamic" and "alpha" in parameters and dim > 2:  # Hunyuan's, whatever the length
        stretch = parameters.number("alpha", MIN_FACTOR, MAX_FACTOR)
        kind, theta = "default", theta * power(stretch, dim / (dim - 2))
    if kind == "default":
        return Rope(dim=dim, theta=theta, query_scale=query_scale)
    if (read := _SCALINGS.get(kind)) is None:
        known = ", ".join(("default", *_SCALINGS))
        raise invalid(parameters.path(_kind_field(parameters)), kind, f"must be one of {known}")
    # If both the model and its scaling have the field, that of the model counts.
    name = "original_max_position_embeddings"
    if name in fields:
        parameters = parameters.having({name: fields.value(name)})
    scaling = read(parameters, dim, max_position)
    return Rope(dim=dim, theta=theta, scaling=scaling, query_scale=query_scale)


def _kind_field(parameters: Fields) -> str:
    # Early configs with scaling call the field `type`.
    return "rope_type" if "rope_type" in parameters else "type"


def _kind(parameters: Fields) -> str:
    return parameters.text(_kind_field(parameters), "default")


def _query_scale(parameters: Fields, max_position: int) -> QueryScale | None:
    if (name := "llama_4_scaling_beta") not in parameters:
        return None
    return QueryScale(
        beta=parameters.number(name, 0.0, MAX_FACTOR),
        original_max_position=_original(parameters, max_position),
    )


def _factor(parameters: Fields, default: float | None = None) -> float:
    return parameters.number("factor", MIN_FACTOR, MAX_FACTOR, default)


def _original(parameters: Fields, max_position: int) -> int:
    # At least 2, since the code divides by its logarithm.
    return parameters.integer("original_max_position_embeddings", 2, MAX_POSITION, max_position)


def _proportional(parameters: Fields, dim: int, max_position: int) -> ProportionalScaling:
    part = parameters.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    return ProportionalScaling(pairs=int(part * dim // 2), factor=_factor(parameters, 1.0))


def _linear(parameters: Fields, dim: int, max_position: int) -> LinearScaling:
    return LinearScaling(factor=_factor(parameters))


def _llama3(parameters: Fields, dim: int, max_position: int) -> Llama3Scaling:
    low = parameters.number("low_freq_factor", MIN_FACTOR, MAX_FACTOR)
    high = parameters.number("high_freq_factor", MIN_FACTOR, MAX_FACTOR)
    if high < low:  # Llama 4 has them equal: nothing is blended
        raise invalid(
            parameters.path("high_freq_factor"), high, f"must be at least low_freq_factor = {low:g}"
        )
    return Llama3Scaling(
        factor=_factor(parameters),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=_original(parameters, max_position),
    )


def _dynamic(parameters: Fields, dim: int, max_position: int) -> DynamicScaling:
    if dim < 4:
        raise invalid("head_dim", dim, "must be at least 4 for dynamic rotary scaling")
    return DynamicScaling(factor=_factor(parameters), original_max_position=max_position)


def _yarn(parameters: Fields, dim: int, max_position: int) -> YarnScaling:
    original = _original(parameters, max_position)
    factor = _factor(parameters, max(max_position / original, MIN_FACTOR))
    attention = _magnitude(factor, 1.0)
    if "mscale" in parameters and "mscale_all_dim" in parameters:
        over = parameters.number("mscale", 0.0, MAX_FACTOR)
        under = parameters.number("mscale_all_dim", 0.0, MAX_FACTOR)
        attention = _magnitude(factor, over) / _magnitude(factor, under)
    return YarnScaling(
        factor=factor,
        original_max_position=original,
        beta_fast=parameters.number("beta_fast", 0.0, MAX_FACTOR, 32.0),
        beta_slow=parameters.number("beta_slow", 0.0, MAX_FACTOR, 1.0),
        truncate=parameters.flag("truncate", True),
        attention_factor=parameters.number("attention_factor", 0.0, MAX_FACTOR, attention),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * natural_logarithm(factor) + 1.0


def _longrope(parameters: Fields, dim: int, max_position: int) -> LongScaling:
    original = _original(parameters, max_position)
    factor = _factor(parameters, max(max_position / original, MIN_FACTOR))
    attention = (
        1.0
        if factor <= 1
        else math.sqrt(1 + natural_logarithm(factor) / natural_logarithm(original))
    )
    attention = parameters.number("attention_factor", 0.0, MAX_FACTOR, attention)
    return LongScaling(
        short=parameters.numbers("short_factor", 0.0, MAX_FACTOR, dim // 2),
        long=parameters.numbers("long_factor", 0.0, MAX_FACTOR, dim // 2),
        original_max_position=original,
        # Phi-3.5-MoE has one of its own for each of the two.
        attention_factor=parameters.number("short_mscale", 0.0, MAX_FACTOR, attention),
        long_attention_factor=parameters.number("long_mscale", 0.0, MAX_FACTOR, attention),
    )


_SCALINGS = {
    "proportional": _proportional,
    "linear": _linear,
    "llama3": _llama3,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
}
