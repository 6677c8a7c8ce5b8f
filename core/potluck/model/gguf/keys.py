"""The fields of a GGUF file, checked one by one."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from potluck.errors import InvalidConfigError
from potluck.model.limits import MAX_LAYERS

Config = dict[str, object]
"""As in a Hugging Face `config.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The contents of a GGUF file that the config is made from."""

    metadata: Mapping[str, object]
    shapes: Mapping[str, tuple[int, ...]]  # of all tensors
    kinds: Mapping[str, str]  # their types, such as Q4_K and F16
    factors: Mapping[str, tuple[float, ...]]  # the numbers of those tensors of FACTORS that exist


class Keys:
    """The fields of a file. The names of its architecture's fields come without the prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        found = file.metadata.get("general.architecture")
        if not isinstance(found, str):
            raise self.invalid("general.architecture", "must name the model's family", whole=True)
        self.architecture = found

    def __contains__(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.file.metadata

    def integer(self, name: str, default: int | None = None) -> int:
        return self._whole(name, self._value(name, default))

    def layers(self) -> int:
        """How many layers the decoder has, without those that guess further tokens."""
        name, guessing = "block_count", "nextn_predict_layers"
        blocks = self.integer(name)
        if not 1 <= blocks <= MAX_LAYERS:
            raise self.invalid(name, f"must be a whole number from 1 to {MAX_LAYERS}")
        guesses = self.integer(guessing, 0)
        if not 0 <= guesses < blocks:
            raise self.invalid(guessing, f"must be a whole number from 0 to {blocks - 1}")
        return blocks - guesses

    def number(self, name: str, default: float | None = None) -> float:
        """A number, rounded to the digits that an f32 has: 0.00001 and not 9.99999974e-06."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.invalid(name, "must be a number")
        return float(f"{value:.7g}") if math.isfinite(value) else float(value)

    def same(self, name: str, default: int | None = None) -> int:
        """A whole number; the file may list it once for each layer, but all must be equal."""
        value = self._value(name, default)
        if isinstance(value, list):
            values = set(cast("list[object]", value))
            if len(values) != 1:
                raise self.invalid(name, "must be the same for all layers")
            value = values.pop()
        return self._whole(name, value)

    def first(self, name: str, default: int | None = None) -> int:
        """A whole number, or that of the first layer, where the file lists one for each layer."""
        return self.each(name, 1, default)[0]

    def each(self, name: str, layers: int, default: int | None = None) -> list[int]:
        """A whole number for each of the first layers, which the file may say once for all."""
        value = self._value(name, default)
        if not isinstance(value, list):
            return [self._whole(name, value)] * layers
        values = cast("list[object]", value)[:layers]
        if len(values) != layers:
            raise self.invalid(name, f"must have one entry for each of {layers} layers")
        return [self._whole(name, one) for one in values]

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.invalid(name, "must be true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.invalid(name, "must be text")
        return value

    def items(self, name: str) -> Sequence[object]:
        """The entries of a list, empty if there is none; `name` is the field's whole name."""
        value = self.file.metadata.get(name)
        return cast("list[object]", value) if isinstance(value, list) else ()

    def rows(self, tensor: str) -> int:
        """How many rows a matrix of the file has."""
        shape = self.file.shapes.get(tensor)
        if shape is None or len(shape) != 2:
            raise self.invalid(tensor, "must be there, as a matrix", whole=True)
        return shape[0]

    def invalid(self, name: str, requirement: str, *, whole: bool = False) -> InvalidConfigError:
        field = name if whole else f"{self.architecture}.{name}"
        return InvalidConfigError(
            f"The GGUF file's {field} {requirement}. The file is damaged or not of a model that"
            " Potluck can run.",
            field=field,
        )

    def _whole(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.invalid(name, "must be a whole number")
        return value

    def _value(self, name: str, default: object) -> object:
        value = self.file.metadata.get(f"{self.architecture}.{name}", default)
        if value is None:
            raise self.invalid(name, "is missing")
        return value
