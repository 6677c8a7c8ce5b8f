"""Tests of every packed format."""

import pytest

from potluck.model.formats import PACKED_FORMATS

every_format = pytest.mark.parametrize(
    "weight_format", PACKED_FORMATS, ids=[one.name for one in PACKED_FORMATS]
)
