"""Fields of a config that several of its readers read, and forms in which a fact may stand."""

from collections.abc import Sequence

from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_LAYERS, MAX_MULTIPLIER, MIN_MULTIPLIER


def read_norm_eps(fields: Fields) -> float:
    """What norms add to a mean square."""
    layer_norm = "layer_norm_eps"
    if "rms_norm_eps" not in fields and layer_norm in fields:
        return fields.number(layer_norm, 0.0, 1.0)
    return fields.number("rms_norm_eps", 0.0, 1.0, 1e-6)


def read_fact(fields: Fields, fact: bool | str) -> bool:
    """A fact of a family: itself, or the field that says it."""
    return fields.flag(fact, False) if isinstance(fact, str) else fact


def read_multiplier(fields: Fields, name: str | float | None) -> float:
    """What something is multiplied by: the number, or the field's, or 1."""
    if name is None or isinstance(name, float | int):
        return 1.0 if name is None else name
    return fields.number(name, MIN_MULTIPLIER, MAX_MULTIPLIER, 1.0)


def read_softcap(fields: Fields, name: str | None) -> float | None:
    """The number that a softcap does not let others exceed; None: there is no softcap."""
    if name is None or name not in fields:
        return None
    return fields.number(name, 0.0, MAX_MULTIPLIER)


def same_integer(fields: Fields, name: str, low: int, high: int) -> int:
    """A whole number; the field may list it once for each layer, but all must be equal."""
    values = set(fields.integers(name, low, high, MAX_LAYERS))
    if len(values) > 1:
        raise invalid(fields.path(name), len(values), "must be the same for all layers")
    return values.pop() if values else fields.integer(name, low, high)


def read_kinds(fields: Fields, name: str, known: Sequence[str], layers: int) -> list[str]:
    """The kind of each layer, as a list of them says it."""
    kinds = list(fields.texts(name))
    if len(kinds) != layers:
        raise invalid(name, len(kinds), f"must have one entry for each of {layers} layers")
    for kind in kinds:
        if kind not in known:
            raise invalid(name, kind, f"must be {' or '.join(known)}")
    return kinds


def read_dense_layers(fields: Fields, layers: int) -> list[bool]:
    """For each layer of a mixture whether it has an MLP in place of experts: the first ones, or as a list says."""
    if "mlp_layer_types" in fields:
        kinds = read_kinds(fields, "mlp_layer_types", ("dense", "sparse"), layers)
        return [kind == "dense" for kind in kinds]
    dense = fields.integer("first_k_dense_replace", 0, MAX_LAYERS)
    return [layer < dense for layer in range(layers)]


def read_each(
    fields: Fields, name: str, low: float, high: float, layers: int
) -> list[float | None]:
    """A number for each layer, as a list says it; None for 0 or null."""
    values = fields.entries(name, MAX_LAYERS)
    if len(values) != layers:
        raise invalid(name, len(values), f"must have one entry for each of {layers} layers")
    entries = Fields({str(layer): value or None for layer, value in enumerate(values)}, name)
    numbers = map(str, range(layers))
    return [entries.number(one, low, high) if one in entries else None for one in numbers]
