"""What the tests of the protocol share: an open connection."""

import pytest
from connection_pair import Pair


@pytest.fixture
def pair() -> Pair:
    return Pair().open()
