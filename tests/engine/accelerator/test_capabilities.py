"""What a device computes with is tried, and said."""

import pytest
import torch

from potluck.engine.accelerator.capabilities import capabilities

CPU = torch.device("cpu")


def test_a_cpu_has_its_own_kernels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    found = capabilities(CPU)

    assert (found.products, found.decoding, found.notes) == ("kernels", "generated", ())
    assert str(found) == "cpu sm=none dtype=float32 products=kernels decoding=generated"
    assert str(found) in caplog.text
