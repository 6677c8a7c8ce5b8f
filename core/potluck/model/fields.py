"""Read typed fields of an untrusted `config.json`.

The dictionary may come from a peer. Whatever it contains, the only error is `InvalidConfigError`,
which names the field and shows its value.
"""

from collections.abc import Iterator, Mapping
from typing import cast

from potluck.errors import InvalidConfigError, UnknownArchitectureError

_SHOWN = 60  # characters of a wrong value; enough to recognise it


class Fields:
    """One mapping of a config. A field that is `null` counts as missing, as in `transformers`."""

    def __init__(self, values: object, path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise invalid(path or "config.json", values, "must be an object of named fields")
        self._values = cast("Mapping[str, object]", values)
        self._path = path

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def over(self, defaults: Mapping[str, object]) -> "Fields":
        """These fields, with defaults for missing ones; a field that is `null` gets no default."""
        return Fields({**defaults, **self._values}, self._path)

    def having(self, values: Mapping[str, object]) -> "Fields":
        """These fields; the given values replace those of the same name."""
        return Fields({**self._values, **values}, self._path)

    def renamed(self, names: Mapping[str, str]) -> "Fields":
        """These fields, some of which are also called otherwise: their own name → the other one."""
        return Fields(with_names(self._values, names), self._path)

    def value(self, name: str) -> object:
        return self._values.get(name)

    def fields(self, name: str) -> "Fields":
        return Fields(self._values.get(name), self.path(name))

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from `low` to `high`; without a default, the field must exist."""
        value = self._present(name, default)
        # `true` is an int in Python, but is no size.
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise invalid(self.path(name), value, f"must be a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number, `low` < number ≤ `high`."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(self.path(name), value, "must be a number")
        if not low < value <= high:  # False for NaN too; Python compares huge ints without a float
            raise invalid(self.path(name), value, f"must be above {low:g} and at most {high:g}")
        return float(value)

    def numbers(self, name: str, low: float, high: float, count: int) -> tuple[float, ...]:
        """Exactly `count` finite numbers, `low` < number ≤ `high`."""
        items = self._items(name)
        if len(items) != count:
            raise invalid(self.path(name), len(items), f"must have {count} entries")
        entries = Fields({str(index): item for index, item in enumerate(items)}, self.path(name))
        return tuple(entries.number(str(index), low, high) for index in range(count))

    def flag(self, name: str, default: bool) -> bool:
        value = self._present(name, default)
        if not isinstance(value, bool):
            raise invalid(self.path(name), value, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._present(name, default)
        if not isinstance(value, str):
            raise invalid(self.path(name), value, "must be text")
        return value

    def integers(self, name: str, low: int, high: int, most: int) -> tuple[int, ...]:
        """A whole number, or a list of at most `most`; empty if the field is missing."""
        items = self.entries(name, most)
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int) or not low <= item <= high:
                raise invalid(self.path(name), item, f"must be whole numbers from {low} to {high}")
        return tuple(cast("list[int]", items))

    def entries(self, name: str, most: int) -> list[object]:
        """The entries of a list of at most `most`, whatever they are."""
        items = self._items(name)
        if len(items) > most:
            raise invalid(self.path(name), len(items), f"must have at most {most} entries")
        return items

    def texts(self, name: str) -> Iterator[str]:
        for item in self._items(name):
            if not isinstance(item, str):
                raise invalid(self.path(name), item, "must be a list of texts")
            yield item

    def each(self, name: str) -> "Iterator[Fields]":
        """The objects of a list."""
        for index, item in enumerate(self._items(name)):
            yield Fields(item, f"{self.path(name)}.{index}")

    def _items(self, name: str) -> list[object]:
        """The entries of a list; a value that is no list is the only entry."""
        value = self._values.get(name)
        if value is None:
            return []
        return list(cast("list[object]", value)) if isinstance(value, list | tuple) else [value]

    def _present(self, name: str, default: object) -> object:
        value = self._values.get(name)
        if value is not None:
            return value
        if default is None:
            raise InvalidConfigError(
                f"config.json lacks {self.path(name)}. The model's folder is incomplete or not a"
                " language model's: download it again.",
                field=self.path(name),
            )
        return default


def with_names(values: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    """Values by their names, and some by another one too: their own name → the other one."""
    more = {ours: values[own] for own, ours in names.items() if own in values}
    return {**values, **more}


def invalid(field: str, value: object, requirement: str) -> InvalidConfigError:
    """The error for a value that is not allowed."""
    shown = _shown(value)
    return InvalidConfigError(
        f"config.json says {field} = {shown}, but it {requirement}. The file is damaged or not"
        " of a model that Potluck can run.",
        field=field,
        value=shown,
    )


def missing_block(name: str, block: str, where: str) -> UnknownArchitectureError:
    """The error for a model that needs what cannot be computed, as `where` says."""
    name = escaped(name)
    return UnknownArchitectureError(
        f"The model is of the architecture {name} and needs {block} ({where}), which Potluck cannot"
        " compute yet.",
        architecture=name,
        block=block,
    )


def escaped(text: str) -> str:
    """The beginning of a stranger's text, which may hold characters that cannot be shown."""
    return text[:80].encode("ascii", "backslashreplace").decode()


def _shown(value: object) -> str:
    """The value in one line; only its type if it is large or nested: its `repr` may be endless."""
    if isinstance(value, int | bool) and -(10**20) < value < 10**20:
        return repr(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    if value is None:
        return "null"
    return f"({type(value).__name__})"
