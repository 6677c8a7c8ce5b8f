"""What files of some families say in words of their own, in those that are read."""

from collections.abc import Mapping, Sequence

from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_LAYERS

FULL, WINDOWED = "full_attention", "sliding_attention"  # as `layer_types` calls them


def renamed(fields: Fields, names: Mapping[str, str]) -> dict[str, object]:
    """Fields by the names that are read: a file's own name → that name."""
    return {ours: fields.value(theirs) for theirs, ours in names.items() if theirs in fields}


def first_entries(fields: Fields, name: str, layers: int) -> list[object]:
    """The entries of the first layers in a list, which may have more; empty if there is none."""
    return fields.entries(name, 2 * MAX_LAYERS)[:layers] if name in fields else []


def windows_but_each_fourth(fields: Fields) -> Mapping[str, object]:
    """Where `layer_types` is missing, all layers have a window but the first and each fourth after it."""
    if "layer_types" in fields:
        return {}
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    return {"layer_types": [WINDOWED if layer % 4 else FULL for layer in range(layers)]}


def rope_of_kinds(fields: Fields, kinds: Sequence[object]) -> dict[str, object]:
    """What `rope_parameters` says of layers of each kind, where files list thetas and parts of heads by layer.

    A scaling is that of layers without a window.
    """
    given = fields.fields("rope_parameters") if "rope_parameters" in fields else Fields({})
    if any(kind in given for kind in (FULL, WINDOWED)):
        return {name: given.value(name) for name in given.names}
    found: dict[str, object] = {}
    for kind in (FULL, WINDOWED):
        if kind not in kinds:
            continue
        layer = kinds.index(kind)
        one: dict[str, object] = {"rope_type": "default"}
        if (theta := _entry(fields, "rope_theta", layer, len(kinds))) is not None:
            one["rope_theta"] = theta
        if (part := _entry(fields, "partial_rotary_factors", layer, len(kinds))) is not None:
            one["partial_rotary_factor"] = part
        if kind == FULL and "rope_scaling" in fields:
            scaling = fields.fields("rope_scaling")
            one |= {name: scaling.value(name) for name in scaling.names}
        found[kind] = one
    return found


def _entry(fields: Fields, name: str, layer: int, layers: int) -> object:
    """What a list says of a layer; a value that is no list is that of all layers."""
    if not isinstance(value := fields.value(name), list):
        return value
    listed = first_entries(fields, name, layers)
    if len(listed) < layers:
        raise invalid(name, len(listed), f"must have one entry for each of {layers} layers")
    return listed[layer]
