"""A tower's rows are those of `transformers`."""

from pathlib import Path

import pytest
import torch
from seeing_models import SEEING, make_seeing_model
from tiny_models import difference

from potluck.engine.vision.tower import Tower


@pytest.mark.parametrize("variant", SEEING)
def test_rows_of_a_picture_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    seeing = make_seeing_model(variant, tmp_path)

    tower = seeing.reference.weights(range(0), embedding=True).tower

    assert isinstance(tower, Tower)
    order = list(seeing.picture.shown)
    assert len(tower(seeing.numbers)) == seeing.picture.made
    assert difference(tower(seeing.numbers)[order], seeing.rows()) < 1e-5
    # In 16 bits it computes with what these hold.
    packed = seeing.reference.weights(range(0), embedding=True, scheme="int8").tower
    assert packed is not None
    assert packed.nbytes < 0.6 * tower.nbytes
    assert difference(packed(seeing.numbers)[order], seeing.rows()) < 0.05
    assert torch.equal(tower(seeing.numbers), tower(seeing.numbers))
