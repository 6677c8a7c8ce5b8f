"""Check that stored tensors make up a model, each by its name, dtype, shape and size.

The same check runs when a folder is opened, when layers are assigned, and when they are loaded,
because files and messages are untrusted.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Protocol, TypeVar

from potluck.errors import BrokenModelError
from potluck.model.config import ModelConfig, Shape
from potluck.model.formats import PACKED_DTYPES, PLAIN_DTYPES
from potluck.model.manifest import DTYPE_BITS
from potluck.model.quantized import (
    GGUF,
    GGUF_BLOCKS,
    TRANSPOSED,
    WEIGHT,
    StoredPart,
    gguf_bytes,
    stored_parts,
    way_of,
)
from potluck.model.schemes import Scheme
from potluck.model.tensor_formats import tensor_format

_QUANTISED = (
    "U32",
    "I32",
    "U8",
    "I8",
    "F8_E4M3",
    "F8_E5M2",
    "F4",
)  # dtypes of stored integers and codes


_INTEGERS = ("I64", "I32", "I16", "U8")  # of a table of ids


class Described(Protocol):
    """A tensor as a file's header, a manifest or a message describes it."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def nbytes(self) -> int: ...


_Tensor = TypeVar("_Tensor", bound=Described)


def find_stored(
    config: ModelConfig,
    expected: Mapping[str, Shape],
    found: Mapping[str, _Tensor],
    *,
    scheme: Scheme | None = None,
    where: str,
) -> dict[str, tuple[_Tensor, ...]]:
    """For each tensor of the model, the checked stored tensors that it is made of; mostly one.

    Args:
        config: of the model.
        expected: names and shapes, from `ModelConfig.stage_tensors`.
        found: the stored tensors by name; more than the model needs are ignored.
        scheme: matrices may be packed already as this scheme holds them; None: no matrix may be packed.
        where: the folder, for messages.

    Raises:
        BrokenModelError: a tensor is missing, or is not what the config asks for; the message names it.
    """
    stored: dict[str, tuple[_Tensor, ...]] = {}
    for name, shape in expected.items():
        tensor = found.get(name)
        if tensor is not None and tensor.dtype in PLAIN_DTYPES:
            # ERNIE's biases of choice are vectors in matrices of one row, and Kimi's decays have three axes of one.
            is_vector = len(shape) == 1 and sorted(
                (*shape, *(1,) * (len(tensor.shape) - 1))
            ) == sorted(tensor.shape)
            _check(tensor, (tuple(tensor.shape),) if is_vector else (shape,), where)
            stored[name] = (tensor,)
        elif tensor is not None and config.is_id_table(name) and tensor.dtype in _INTEGERS:
            _check(tensor, (shape,), where)
            stored[name] = (tensor,)
        elif tensor is not None and tensor.dtype in PACKED_DTYPES:
            _check_packed(config, tensor, shape, scheme, where)
            stored[name] = (tensor,)
        elif (turned := found.get(_turned(name))) is not None and turned.dtype in PLAIN_DTYPES:
            _check(turned, (shape[::-1],), where)
            stored[name] = (turned,)
        else:
            stored[name] = _quantised(config, name, shape, found, where)
    return stored


def stored_bytes(dtype: str, shape: Shape) -> int | None:
    """The bytes of a stored tensor; None: no tensor has this dtype and shape."""
    if (packed := PACKED_DTYPES.get(dtype)) is not None:
        return packed.nbytes(shape[0], prod(shape[1:])) if shape else None
    if (bits := DTYPE_BITS.get(dtype)) is None:
        return gguf_bytes(dtype, shape)
    return prod(shape) * bits // 8


def _check_packed(
    config: ModelConfig, tensor: Described, shape: Shape, scheme: Scheme | None, where: str
) -> None:
    held = None if scheme is None else tensor_format(config, tensor.name, shape, scheme)
    if PACKED_DTYPES[tensor.dtype] != held:
        raise _unreadable(tensor, PLAIN_DTYPES, where)
    _check(tensor, (shape,), where)


def _turned(name: str) -> str:
    """The name of a matrix that is stored as (in, out)."""
    return name.removesuffix(WEIGHT) + TRANSPOSED


def _quantised(
    config: ModelConfig, name: str, shape: Shape, found: Mapping[str, _Tensor], where: str
) -> tuple[_Tensor, ...]:
    quantization = config.quantization
    if quantization is not None and name.endswith(WEIGHT):
        prefix = name.removesuffix(WEIGHT)

        def find(suffix: str) -> tuple[str, Shape] | None:
            tensor = found.get(prefix + suffix)
            return None if tensor is None else (tensor.dtype, tuple(tensor.shape))

        way = way_of(quantization, shape, find) or quantization
        if parts := stored_parts(way, shape):
            chosen = [_part(prefix, part, found, where) for part in parts]
            return tuple(tensor for tensor in chosen if tensor is not None)
    if (tensor := found.get(name)) is None:
        raise _missing(name, shape, len(found), where)
    if quantization is None or quantization.method != "gguf" or len(shape) != 2:
        is_unsaid = quantization is None and tensor.dtype in _QUANTISED
        raise _unreadable(tensor, PLAIN_DTYPES, where, is_unsaid=is_unsaid)
    if tensor.dtype.removeprefix(GGUF) not in GGUF_BLOCKS:
        raise _unreadable(tensor, (*PLAIN_DTYPES, *GGUF_BLOCKS), where)
    _check(tensor, (shape,), where)
    return (tensor,)


def _part(
    prefix: str, part: StoredPart, found: Mapping[str, _Tensor], where: str
) -> _Tensor | None:
    names = [prefix + suffix for suffix in part.suffixes]
    tensor = next((found[name] for name in names if name in found), None)
    if tensor is None:
        if part.optional:
            return None
        raise _missing(
            names[0], part.shapes[-1] if part.shapes else (), len(found), where, of=prefix + WEIGHT
        )
    if tensor.dtype not in part.dtypes:
        raise _unreadable(tensor, part.dtypes, where)
    is_notes = not part.shapes and len(tensor.shape) == 1 and tensor.nbytes <= part.most
    _check(tensor, (tuple(tensor.shape),) if is_notes else part.shapes, where)
    return tensor


def _check(tensor: Described, shapes: Iterable[Shape], where: str) -> None:
    shape, name = tuple(tensor.shape), tensor.name
    if shape not in shapes:
        asked = " or ".join(str(list(one)) for one in shapes)
        raise BrokenModelError(
            f"Tensor {name} in {where} has shape {list(shape)}, but config.json asks for {asked}."
            " Weights and config.json are not of the same model: take both from one repository.",
            tensor=name,
        )
    if tensor.nbytes != stored_bytes(tensor.dtype, shape):
        raise BrokenModelError(
            f"Tensor {name} in {where} has {tensor.nbytes} bytes, which is not what"
            f" {tensor.dtype} {list(shape)} takes. The files are broken; download the model again.",
            tensor=name,
        )


def _missing(
    name: str, shape: Shape, others: int, where: str, *, of: str | None = None
) -> BrokenModelError:
    part = f", a part of {of}" if of is not None else ""
    return BrokenModelError(
        f"The model in {where} lacks tensor {name} {list(shape)}{part}, which its config.json"
        f" asks for; {others} others are there. Its weights and config.json are not of the same model, or a"
        " file with weights is missing.",
        tensor=name,
    )


def _unreadable(
    tensor: Described, dtypes: Iterable[str], where: str, *, is_unsaid: bool = False
) -> BrokenModelError:
    if is_unsaid and not tensor.dtype.startswith(GGUF):
        return BrokenModelError(
            f"The matrices of the model in {where} are stored quantised ({tensor.name} as {tensor.dtype[:32]}), and"
            " its config.json does not say how: it has no quantization_config. Take the config.json from the"
            " repository of these weights.",
            tensor=tensor.name,
            dtype=tensor.dtype[:32],
        )
    return BrokenModelError(
        f"Tensor {tensor.name} in {where} is stored as {tensor.dtype[:32]}; Potluck reads"
        f" {', '.join(dtypes)} here. Take the model in another form.",
        tensor=tensor.name,
        dtype=tensor.dtype[:32],
    )
