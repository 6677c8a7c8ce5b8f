"""Tensors as they travel: a header with dtype and shape, and the bytes behind it.

Nothing is copied: the payload's bytes are the tensor's memory, both ways. Bytes are little-endian,
as every machine that torch runs on.
"""

import math

import torch
from torch import Tensor

from potluck.errors import InvalidStepError
from potluck.wire.messages import Dtype, TensorHeader

DTYPES: dict[Dtype, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
}
_NAMES: dict[torch.dtype, Dtype] = {dtype: name for name, dtype in DTYPES.items()}


def to_payload(tensor: Tensor) -> tuple[TensorHeader, memoryview]:
    """The header, and a view of the tensor's own bytes where it is contiguous and on the CPU."""
    tensor = tensor.detach().cpu().contiguous()
    header = TensorHeader(dtype=_NAMES[tensor.dtype], shape=tuple(tensor.shape))
    # numpy has no bfloat16; bytes it has.
    return header, tensor.view(-1).view(torch.uint8).numpy().data


def from_payload(header: TensorHeader, payload: bytes | bytearray | memoryview) -> Tensor:
    """A tensor over the payload's memory, which it keeps alive.

    Raises:
        InvalidStepError: the dtype never travels, or the bytes are not as many as the header says.
    """
    dtype = DTYPES.get(header.dtype)
    if dtype is None:
        raise InvalidStepError(
            f"A step came as {header.dtype}, which no stage computes on.", dtype=header.dtype
        )
    view = memoryview(payload)
    count = math.prod(header.shape)
    if count == 0 or count * dtype.itemsize != view.nbytes:
        raise InvalidStepError(
            f"A step's header says {header.dtype} {list(header.shape)}, but {view.nbytes} bytes"
            " came with it. The other computer runs a broken version.",
            nbytes=view.nbytes,
        )
    if view.readonly:  # torch would warn: it has no tensors that cannot be written
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=dtype).view(header.shape)
