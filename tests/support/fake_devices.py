"""Devices that are not here: their tensors have a device, dtype and shape, but no numbers.

With torch's fake tensors, every operator checks devices, dtypes and shapes. They refuse to return a
number to Python, like a device that must not be waited for. Questions to a driver are answered
here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from potluck.engine import device as device_module
from potluck.engine.accelerator import aligned, probe
from potluck.engine.kernels import PackedWeight
from potluck.engine.layers import rotary
from potluck.model.formats import PackedFormat


class ByOperators(TorchFunctionMode):
    """Replaces Python's special operations by plain operators.

    The special ones need a device guard, which a torch build for CPUs lacks.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _INSTEAD and args[0].device.type != "cpu":
            func = _INSTEAD[func]
        return func(*args, **(kwargs or {}))


def _copy(target: Tensor, source: Tensor) -> Tensor:
    """Check that the shapes fit; no numbers are copied."""
    source.expand(target.shape)
    return target


def _at(x: Tensor, index: Any) -> Tensor:
    parts = index if isinstance(index, tuple) else (index,)
    given = sum(part is not None and part is not Ellipsis for part in parts)
    axis = 0
    for part in parts:
        match part:
            case None:
                x, axis = x.unsqueeze(axis), axis + 1
            case slice():
                x = torch.ops.aten.slice(x, axis, part.start, part.stop, part.step or 1)
                axis += 1
            case int():
                x = x.select(axis, part)
            case Tensor():
                x, axis = x.index_select(axis, part), axis + 1
            case _:  # an ellipsis; indices after it take one axis each
                axis = x.dim() - (given - axis)
    return x


def _set(x: Tensor, index: Any, value: Any) -> None:
    view = _at(x, index)
    _copy(view, value) if isinstance(value, Tensor) else view.fill_(value)


def _contiguous(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


_INSTEAD: dict[Any, Callable[..., Any]] = {
    Tensor.__getitem__: _at,
    Tensor.__setitem__: _set,
    Tensor.__invert__: torch.bitwise_not,
    Tensor.contiguous: _contiguous,
    Tensor.copy_: _copy,
}


class OnDevice(TorchDispatchMode):
    """Fails if an operator takes or returns a tensor of another device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.operators = device, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        self.operators += 1
        for leaf in tree_leaves((args, kwargs, made)):
            assert not isinstance(leaf, Tensor) or leaf.device == self._device, func
        return made


class FakeGraphs:
    """Graphs of a device without numbers: checks that captured work stays on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.captured = device, 0

    def capture(self, body: Callable[[], None]) -> "FakeGraphs":
        with OnDevice(self._device) as seen:
            body()
        assert seen.operators
        self.captured += 1
        return self

    def replay(self) -> None: ...


@contextmanager
def fake_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make all tensors inside fake; the device seems to have every operator."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 6))
    monkeypatch.setattr(device_module, "_computes", lambda *_, **__: True)
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda _: 0)
    monkeypatch.setattr(probe, "_gives", _gives)
    monkeypatch.setattr(probe, "_is_faster", lambda *_: False)
    monkeypatch.setattr(probe, "ReferenceKernels", _Zeros)
    monkeypatch.setattr(rotary, "_powers", lambda _, exponents: exponents)
    monkeypatch.setattr(rotary.Rotary, "_grow", _grow)
    monkeypatch.setattr(aligned, "has_flash", lambda *_: device.type == "cuda")
    monkeypatch.setattr(aligned, "causal_lower_right", _lower_right(device))
    if device.type != "cuda":  # torch would ask the device which kernel it wants
        monkeypatch.setattr(F, "scaled_dot_product_attention", _attention)
    with FakeTensorMode(allow_non_fake_inputs=True), ByOperators(), torch.inference_mode():
        yield


def _gives(
    compute: Callable[[], Tensor], expected: Tensor, what: str, device: torch.device
) -> bool:
    made = compute()
    assert (made.device, made.shape) == (device, expected.shape), what
    return True


def _grow(table: rotary.Rotary, positions: int) -> None:
    """Grow the table without its numbers, which are not made by torch."""
    width = table._row_bytes // table._dtype.itemsize
    shape = (positions, 1, width)
    table._cos = table._sin = torch.empty(shape, dtype=table._dtype, device=table._device)
    table._positions = positions


class _Zeros:
    """Packs into bytes whose values do not matter."""

    def pack(self, weight: Tensor, weight_format: PackedFormat) -> PackedWeight:
        rows, width = weight.shape
        return PackedWeight.empty(rows, width, weight_format)


def _lower_right(device: torch.device) -> Callable[[int, int], Tensor]:
    """Return a substitute for torch's causal mask, whose class cannot be a fake tensor."""

    def mask(queries: int, keys: int) -> Tensor:
        return torch.ones((queries, keys), dtype=torch.bool, device=device).tril(keys - queries)

    return mask


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Check arguments as torch's attention does, and return a result of the right shape."""
    assert q.dtype == k.dtype == v.dtype
    assert q.device == k.device == v.device
    assert attn_mask is None or attn_mask.dtype in (torch.bool, q.dtype)
    shared = q.shape[1] // k.shape[1] if enable_gqa else 1
    scores = q @ k.repeat_interleave(shared, 1).transpose(2, 3)
    if attn_mask is not None:
        scores = scores + attn_mask
    return scores.to(v.dtype) @ v.repeat_interleave(shared, 1)
