"""Find by trying what a device can compute with, and write it to the log."""

import logging

import torch

from potluck.engine.accelerator.graphs import find_graphs
from potluck.engine.accelerator.nvidia.operators import find_operators
from potluck.engine.accelerator.ops import choose_ops
from potluck.engine.accelerator.probe import find_int4_product, multiplies
from potluck.engine.device import compute_capability, compute_dtype
from potluck.engine.layers.attention import EagerAttention, ExpandedAttention
from potluck.engine.layers.norms import plain_norm
from potluck.model.formats import INT4_SUPER, PACKED_FORMATS

logger = logging.getLogger(__name__)


def log_capabilities(device: torch.device) -> None:
    """Try what this device can do, and log it. It takes a second or less, and never fails.

    The line says how packed weights are multiplied (`kernels` are our own, `int4` is torch's product,
    `blocks` unpacks them block by block), how single tokens are computed (`generated`, `graphs`, or
    `layers` one by one), and what is slower than on other devices.
    """
    dtype = compute_dtype("int4", device)
    products, decoding, notes = "kernels", "generated", list[str]()
    if device.type != "cpu":
        decoding = "graphs"
        operators = find_operators(device, dtype)
        if operators is None or not multiplies(operators, INT4_SUPER):
            products = _products_of_torch(device, dtype, notes)
        if dtype != torch.bfloat16:
            notes.append("it has no fast bf16 and computes in f16 where a model allows it")
        if find_graphs(device) is None:
            decoding = "layers"
            if device.type == "cuda":
                notes.append("graphs do not work, so that a token takes longer")
        ops = choose_ops(device, dtype)
        if ops.attention is ExpandedAttention:
            notes.append("keys are expanded for attention, so that prompts take longer")
        if ops.attention is EagerAttention:
            notes.append("attention is computed in steps, so that prompts take much longer")
        if ops.norm is plain_norm:
            notes.append("norms are computed in steps, which takes longer")
    logger.info(
        "device %s sm=%s dtype=%s products=%s decoding=%s notes=%s",
        device,
        ".".join(map(str, compute_capability(device) or ("none",))),
        str(dtype).removeprefix("torch."),
        products,
        decoding,
        "; ".join(notes) or "none",
    )


def _products_of_torch(device: torch.device, dtype: torch.dtype, notes: list[str]) -> str:
    product = find_int4_product(device, dtype)
    formats = () if product is None else product.formats
    if lacking := [held.name for held in PACKED_FORMATS if held not in formats]:
        names = ", ".join(lacking)
        notes.append(f"weights of {names} are unpacked for each product: 16 bits are faster")
    return "blocks" if product is None else "int4"
