"""A sampler keeps memory between tokens, and shares it with no other one."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from potluck.engine.sampling import sampler
from potluck.engine.sampling.sampler import Choice, Sampler
from potluck.wire.activation_messages import Sampling


def between_lines(work: Callable[[], Choice], other: Callable[[], Choice]) -> Choice:
    """Return the result of some work, before each line of which in the sampler other work is done."""
    done = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal done
        if frame.f_code.co_filename != sampler.__file__:
            return None
        if event == "line":  # nothing is traced meanwhile
            other()
            done += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = work()
    finally:
        sys.settrace(before)
    assert done > 0
    return result


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=1.0, top_p=0.9),
        Sampling(temperature=1.0, top_k=40, logprobs=5),
        Sampling(temperature=1.0, min_p=0.01, repetition_penalty=1.2),
    ],
    ids=["plain", "top p", "top k, logprobs", "min p, penalty"],
)
def test_a_sampler_chooses_the_same_whatever_another_one_does_meanwhile(sampling: Sampling) -> None:
    """Each stage has a sampler, and a thread that computes; tests have several stages in a process."""
    rows = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0))
    one, other = Sampler(), Sampler()

    def choose(which: Sampler, row: int) -> Choice:
        return which.choose(rows[row], sampling, position=3, history=(5, 6))

    alone = choose(Sampler(), 0)
    choose(other, 1)

    assert between_lines(lambda: choose(one, 0), lambda: choose(other, 1)) == alone


def test_samplers_share_no_memory() -> None:
    samplers = Sampler(), Sampler()
    for each in samplers:
        each.choose(torch.randn(50), Sampling(temperature=1.0), position=0, history=())

    def arrays(one: Sampler) -> list[NDArray[Any]]:
        values = (getattr(one, name) for name in dir(one))
        return [value for value in values if isinstance(value, np.ndarray)]

    ours, theirs = map(arrays, samplers)
    assert ours
    assert not any(np.shares_memory(a, b) for a in ours for b in theirs)
