"""The way a device computes is found by trying, and logged."""

import pytest
import torch

from potluck.engine.accelerator import capabilities
from potluck.engine.accelerator.capabilities import log_capabilities
from potluck.engine.accelerator.int4pack import MpsForm
from potluck.engine.accelerator.probe import Int4Product
from potluck.model.formats import INT4, INT4_OFFSET, INT4_SUPER

CPU = torch.device("cpu")


def test_a_cpu_has_its_own_kernels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    log_capabilities(CPU)

    line = "device cpu sm=none dtype=float32 products=kernels decoding=generated notes=none"
    assert line in caplog.messages


def test_a_format_that_the_product_computes_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    found = Int4Product(MpsForm(), (INT4, INT4_OFFSET, INT4_SUPER), many_by_operator=True)
    monkeypatch.setattr(capabilities, "find_int4_product", lambda *_: found)

    log_capabilities(torch.device("meta"))

    assert "weights of int8, mxfp4 are unpacked for each product: 16 bits are faster" in caplog.text
