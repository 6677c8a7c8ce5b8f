"""Tensors on the wire: a header with dtype and shape, and the bytes behind it.

Nothing is copied: the payload's bytes are the tensor's memory, on both sides. Bytes are
little-endian, as on every machine that torch runs on.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.errors import InvalidStepError
from potluck.wire.activation_messages import Dtype, TensorHeader

DTYPES: dict[Dtype, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
}
_ITEM_BYTES: dict[Dtype, int] = {name: dtype.itemsize for name, dtype in DTYPES.items()}
_NAMES: dict[torch.dtype, Dtype] = {dtype: name for name, dtype in DTYPES.items()}


class Activations:
    """Token ids or hidden states between stages: bytes, and a tensor over them, made on demand.

    A single token may never need the tensor, and then no operator of torch runs. While a stage
    waits, the processor's caches lose torch's code; then even its smallest operator takes 50 to 100
    µs.
    """

    __slots__ = ("_data", "_tensor", "dtype", "shape")

    def __init__(self, dtype: torch.dtype, shape: Sequence[int], data: memoryview) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self._data: memoryview | None = data
        self._tensor: Tensor | None = None

    @classmethod
    def of(cls, tensor: Tensor) -> "Activations":
        """Wrap a tensor on any device. It is copied only if it is not contiguous or not in RAM."""
        made = cls.__new__(cls)
        made.dtype, made.shape = tensor.dtype, tuple(tensor.shape)
        made._data, made._tensor = None, tensor
        return made

    @property
    def data(self) -> memoryview:
        """The bytes of the values, in row-major order."""
        if self._data is None:
            assert self._tensor is not None
            tensor = self._tensor.detach().cpu().contiguous()
            # Viewed as bytes first, since numpy has no bfloat16.
            self._data = tensor.view(-1).view(torch.uint8).numpy().data
        return self._data

    @property
    def number(self) -> int:
        """The value of a single integer, such as a token id."""
        return int.from_bytes(self.data, "little", signed=True)

    @property
    def tensor(self) -> Tensor:
        """A tensor over the bytes. It keeps the bytes alive."""
        if self._tensor is None:
            view = self._data
            assert view is not None
            if view.readonly:  # copied, since torch warns of tensors over read-only memory
                view = memoryview(bytearray(view))
            self._tensor = torch.frombuffer(view, dtype=self.dtype).view(self.shape)
        return self._tensor


def to_payload(activations: Activations) -> tuple[TensorHeader, memoryview]:
    """Return the header and the bytes to send."""
    header = TensorHeader(dtype=_NAMES[activations.dtype], shape=activations.shape)
    return header, activations.data


def from_payload(header: TensorHeader, payload: bytes | bytearray | memoryview) -> Activations:
    """Return the received activations. They keep the payload alive.

    Raises:
        InvalidStepError: no stage uses this dtype, or the number of bytes contradicts the header.
    """
    dtype = DTYPES.get(header.dtype)
    if dtype is None:
        raise InvalidStepError(
            f"A step came as {header.dtype}, which no stage computes on.", dtype=header.dtype
        )
    view = memoryview(payload).cast("B")
    count = math.prod(header.shape)
    if count == 0 or count * _ITEM_BYTES[header.dtype] != view.nbytes:
        raise InvalidStepError(
            f"A step's header says {header.dtype} {list(header.shape)}, but {view.nbytes} bytes"
            " came with it. The other computer runs a broken version.",
            nbytes=view.nbytes,
        )
    return Activations(dtype, header.shape, view)


def pixels_of(header: TensorHeader, payload: bytes | bytearray | memoryview) -> Tensor:
    """The received pixels of a picture, (H, W, 3), u8, whose bytes were counted when they arrived."""
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8).view(header.shape)
