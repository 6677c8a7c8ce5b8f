"""The way a device computes is found by trying, and told to people."""

from importlib import import_module

import pytest
import torch

from potluck.engine.accelerator.capabilities import capabilities
from potluck.engine.accelerator.int4pack import MpsForm
from potluck.engine.accelerator.probe import Int4Product
from potluck.model.formats import INT4, INT4_OFFSET

CPU = torch.device("cpu")


def test_a_cpu_has_its_own_kernels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    found = capabilities(CPU)

    assert (found.products, found.decoding, found.notes) == ("kernels", "generated", ())
    assert str(found) == "cpu sm=none dtype=float32 products=kernels decoding=generated"
    assert str(found) in caplog.text


def test_a_format_that_the_product_computes_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Int4Product(MpsForm(), (INT4, INT4_OFFSET), many_by_operator=True)
    module = import_module("potluck.engine.accelerator.capabilities")  # not the function
    monkeypatch.setattr(module, "find_int4_product", lambda *_: found)

    notes = capabilities(torch.device("meta")).notes

    assert "weights of int8 are unpacked for each product: 16 bits are faster" in notes
