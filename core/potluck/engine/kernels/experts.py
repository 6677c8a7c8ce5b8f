"""A mixture of experts for one token, with all memory made beforehand."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from potluck.engine.kernels.expert_kernel import EXPERTS_FIELDS, ExpertShape
from potluck.engine.kernels.generated import GeneratedKernels
from potluck.engine.kernels.layout import input_bytes
from potluck.engine.kernels.tensors import PackedWeight
from potluck.model.config import Activation

Expert = tuple[PackedWeight, PackedWeight]
"""Gates before ups, in one matrix; and the last matrix."""


class ExpertsDecoder:
    """The experts of a layer. It keeps the weights alive."""

    def __init__(
        self, kernels: GeneratedKernels, experts: Sequence[Expert], activation: Activation
    ) -> None:
        gate_up, down = experts[0]
        shape = ExpertShape(
            hidden=gate_up.width,
            intermediate=down.width,
            activation=activation,
            gate_up_bits=gate_up.bits,
            down_bits=down.bits,
        )
        for expert in experts:
            assert [(one.rows, one.width, one.bits) for one in expert] == [
                (2 * shape.intermediate, shape.hidden, shape.gate_up_bits),
                (shape.hidden, shape.intermediate, shape.down_bits),
            ]
        self._kernels, self._experts, self._shape = kernels, tuple(experts), shape
        self._run = kernels.experts_kernel(shape)
        self._addresses = [tuple(one.data.data_ptr() for one in expert) for expert in experts]
        self._memory = {
            "records": torch.empty(input_bytes(1, shape.hidden), dtype=torch.uint8),
            "wide": torch.empty(2 * shape.intermediate),
            "gated": torch.empty(input_bytes(1, shape.intermediate), dtype=torch.uint8),
            "added": torch.empty(shape.hidden),
        }

    def __call__(self, x: Tensor, chosen: Sequence[int], weights: Sequence[float]) -> Tensor:
        """(1, D), f32 → (1, D): what the chosen experts make of it, each times its weight."""
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        assert x.shape == (1, self._shape.hidden)
        assert len(chosen) == len(weights)
        out = torch.zeros_like(x)
        factors = (ctypes.c_float * len(weights))(*weights)
        addresses = [address for expert in chosen for address in self._addresses[expert]]
        experts = (ctypes.c_int64 * len(addresses))(*addresses)
        given = {
            **{name: memory.data_ptr() for name, memory in self._memory.items()},
            "input": x.data_ptr(),
            "out": out.data_ptr(),
            "weights": ctypes.addressof(factors),
            "job": self._kernels.job,
            "shares": self._kernels.shares,
        }
        step = (ctypes.c_int64 * len(EXPERTS_FIELDS))(*(given[name] for name in EXPERTS_FIELDS))
        self._kernels.wake()
        self._run(ctypes.addressof(step), ctypes.addressof(experts), len(chosen))
        return out
