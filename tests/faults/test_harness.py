"""One run of the harness, on a home of its own."""

from pathlib import Path

import pytest
from hosts import can_make_namespaces

from faults.batch import Homes
from faults.models import MODELS
from faults.scenario import scenario

SEED = 3  # one greedy session in f32

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not can_make_namespaces(), reason="needs root and network namespaces"),
]


def test_a_killed_stage_process_loses_no_answer_and_leaves_nothing_over(tmp_path: Path) -> None:
    homes = Homes(tmp_path, silence_s=20.0)
    try:
        result = homes.run(scenario(SEED, MODELS, "kill-stage"))
    finally:
        homes.close()

    assert result.verdict in ("equal", "error"), result.line()
    assert result.leaks == []
    assert result.next_prompt_s is not None
