"""What the readers of all vision configs share."""

from collections.abc import Callable
from typing import TypedDict

from potluck.model.fields import Fields, invalid
from potluck.model.limits import MAX_HIDDEN, MAX_INTERMEDIATE, MAX_THETA
from potluck.model.vision.spec import TowerFacts, TowerSpec

MAX_PATCH = 64  # pixels
MAX_MERGE = 16  # patches of a cell's side
MAX_SIDE = 1024  # patches of the side of a table of positions
MAX_SQUARE = 1 << 14  # pixels of its side
MAX_WIDTH = 1 << 14
MAX_TOWER = 256  # layers; the largest known has 63

Reader = Callable[[Fields, Fields, TowerFacts, int], TowerSpec]
"""Makes the specification of a tower: of the fields of the whole and of the vision config, its facts, and the
decoder's hidden size. Raises InvalidConfigError for a field that is missing or wrong."""


class Sizes(TypedDict):
    """Of a transformer, as of `TowerSpec`."""

    width: int
    layers: int
    heads: int
    intermediate: int


def transformer(
    eye: Fields,
    *,
    width: str = "hidden_size",
    layers: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    intermediate: int | None = None,
) -> Sizes:
    """The sizes of the transformer, by the names that the config has for them."""
    size, count = eye.integer(width, 4, MAX_WIDTH), eye.integer(heads, 1, MAX_WIDTH)
    if size % (4 * count):
        raise invalid(eye.path(width), size, "must have heads of a multiple of 4 numbers")
    return {
        "width": size,
        "layers": eye.integer(layers, 1, MAX_TOWER),
        "heads": count,
        "intermediate": eye.integer("intermediate_size", 1, MAX_INTERMEDIATE, intermediate),
    }


def side_of(eye: Fields, name: str, most: int, default: int | None = None) -> int:
    """The side of a square, which some configs say twice."""
    sides = set(eye.integers(name, 1, most, 2))
    if len(sides) > 1:
        raise invalid(eye.path(name), eye.value(name), "must have equal sides")
    return sides.pop() if sides else eye.integer(name, 1, most, default)


def table(
    eye: Fields, merge: int = 1, *, patch: int | None = None, size: int | None = None
) -> tuple[int, int]:
    """Patches of the side of the table of positions, and pixels of a patch's side.

    Args:
        eye: the vision config.
        merge: patches of a cell's side: the table has whole cells.
        patch: pixels of a patch's side, if the config does not say it.
        size: pixels of a picture's side, likewise.
    """
    pixels = side_of(eye, "patch_size", MAX_PATCH, patch)
    side = side_of(eye, "image_size", MAX_SQUARE, size) // pixels
    if not 0 < side <= MAX_SIDE or side % merge:
        raise invalid(eye.path("image_size"), side * pixels, f"must have whole cells of {merge}")
    return side, pixels


def cell_of_ratio(fields: Fields, name: str) -> int:
    """Patches of a cell's side, of which a field has the inverse."""
    return round(1 / fields.number(name, 1 / MAX_MERGE, 1.0, 0.5))


def rope_theta(eye: Fields, default: float) -> float:
    """The theta of a tower's rope, which files have in an object of its own or not."""
    parameters = eye.fields("rope_parameters") if "rope_parameters" in eye else eye
    return parameters.number("rope_theta", 1.0, MAX_THETA, default)


def check_out(eye: Fields, name: str, out: int) -> None:
    """Raise InvalidConfigError unless a field has the decoder's hidden size, or is missing."""
    if (given := eye.integer(name, 1, MAX_HIDDEN, out)) != out:
        raise invalid(eye.path(name), given, f"must be the hidden size, {out}")


def only(fields: Fields, name: str, *allowed: object) -> None:
    """Raise InvalidConfigError unless a field has one of these values."""
    if fields.value(name) not in allowed:
        raise invalid(fields.path(name), fields.value(name), f"must be {allowed[-1]}")
