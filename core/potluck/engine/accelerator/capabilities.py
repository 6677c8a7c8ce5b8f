"""Find by trying what a device can compute with, for the log and for people."""

import logging
from dataclasses import dataclass
from typing import Literal

import torch

from potluck.engine.accelerator.graphs import find_graphs
from potluck.engine.accelerator.ops import choose_ops
from potluck.engine.accelerator.probe import find_int4_product
from potluck.engine.attention import EagerAttention, ExpandedAttention
from potluck.engine.device import compute_capability, compute_dtype
from potluck.engine.norms import RmsNorm
from potluck.model.formats import PACKED_FORMATS

logger = logging.getLogger(__name__)

Products = Literal["kernels", "int4", "blocks"]
Decoding = Literal["generated", "graphs", "layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """How a device computes packed weights and single tokens."""

    device: str  # as torch names it
    compute_capability: tuple[int, int] | None  # of a CUDA device
    dtype: torch.dtype  # of hidden states beside packed weights
    products: Products  # our kernels, torch's int4 product, or weights unpacked block by block
    decoding: Decoding  # generated functions, graphs, or layer by layer
    notes: tuple[str, ...]  # what is slower than on other devices, for people

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        version = ".".join(map(str, self.compute_capability or ("none",)))
        return f"{self.device} sm={version} dtype={dtype} products={self.products} decoding={self.decoding}"


def capabilities(device: torch.device) -> Capabilities:
    """Try what this device can do, and log it. It takes a second or less, and never fails.

    It has not run on a real GPU.
    """
    dtype = compute_dtype("int4", device)
    products: Products = "kernels"
    decoding: Decoding = "generated"
    notes: list[str] = []
    if device.type != "cpu":
        products, decoding = "int4", "graphs"
        if dtype != torch.bfloat16:
            notes.append("it has no fast bf16 and computes in f16 where a model allows it")
        product = find_int4_product(device, dtype)
        if product is None:
            products = "blocks"
        formats = () if product is None else product.formats
        if lacking := [held.name for held in PACKED_FORMATS if held not in formats]:
            names = ", ".join(lacking)
            notes.append(f"weights of {names} are unpacked for each product: 16 bits are faster")
        if find_graphs(device) is None:
            decoding = "layers"
            if device.type == "cuda":
                notes.append("graphs do not work, so that a token takes longer")
        ops = choose_ops(device, dtype)
        if ops.attention is ExpandedAttention:
            notes.append("keys are expanded for attention, so that prompts take longer")
        if ops.attention is EagerAttention:
            notes.append("attention is computed in steps, so that prompts take much longer")
        if ops.rms_norm is not RmsNorm:
            notes.append("norms are computed in steps, which takes longer")
    found = Capabilities(
        device=str(device),
        compute_capability=compute_capability(device),
        dtype=dtype,
        products=products,
        decoding=decoding,
        notes=tuple(notes),
    )
    logger.info("device %s notes=%s", found, "; ".join(found.notes) or "none")
    return found
