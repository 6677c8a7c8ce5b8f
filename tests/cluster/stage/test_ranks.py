"""What a rank says to the others of its group about its steps, over connections that only note it."""

from typing import Any, cast

import pytest
import torch
from chain_bench import FakeLink

from potluck.cluster.stage.ranks import Links, Ranks
from potluck.engine.payload import Activations
from potluck.engine.session import StepTokens
from potluck.errors import OutOfMemoryError, PeerLostError
from potluck.ids import SessionId
from potluck.wire.activation_messages import Forward, Sampling
from potluck.wire.rank_messages import AbortStep


class GroupLink(FakeLink):
    """A connection with another rank, for sums or for steps."""

    def fileno(self) -> int:
        return -1

    def send_nowait(self, message: Any, payload: Any = b"") -> None:
        super().send_nowait(message, payload)


def join(rank: int, sums: dict[int, FakeLink], steps: tuple[FakeLink, ...] = ()) -> Ranks:
    ranks = Ranks()
    ranks.join(rank, Links(sums=cast("Any", sums), steps=cast("Any", steps)))
    return ranks


def fail(ranks: Ranks, number: int, error: Exception) -> None:
    """A stage aborts its exchange before an error gets to where its reason is known."""
    with ranks.step(number):
        ranks.abort()
        raise error


def test_the_others_hear_first_why_a_step_is_given_up() -> None:
    link = GroupLink()
    ranks = join(1, {0: link})

    with pytest.raises(OutOfMemoryError):
        fail(ranks, 7, OutOfMemoryError("The memory is full."))

    assert link.sent == [
        AbortStep(rank_step=7, kind="out_of_memory", message="The memory is full.")
    ]


def test_what_is_no_error_of_potluck_gives_the_step_up_as_well() -> None:
    link = GroupLink()
    ranks = join(1, {0: link})

    with pytest.raises(RuntimeError):
        fail(ranks, 7, RuntimeError())

    (message,) = link.sent
    assert isinstance(message, AbortStep)
    assert (message.rank_step, message.kind) == (7, "engine")


def test_a_step_of_which_only_some_ranks_have_heard_is_given_up_by_its_number() -> None:
    sums, steps = GroupLink(), GroupLink()
    ranks = join(0, {1: sums, 2: GroupLink()}, (steps, GroupLink(is_closed=True)))
    tokens = StepTokens(
        session=SessionId("a"),
        inputs=Activations(torch.int32, (1,), memoryview(bytes(4))),
        epoch=1,
        step=1,
        position=0,
        sampling=None,
    )

    for _ in range(2):
        with pytest.raises(PeerLostError), ranks.lead([tokens]):
            pass

    begun = [message.rank_step for message in steps.sent if isinstance(message, Forward)]
    given_up = [message.rank_step for message in sums.sent if isinstance(message, AbortStep)]
    assert begun == given_up == [1, 2]


def test_the_others_are_told_which_tokens_of_a_step_are_guesses() -> None:
    """What these take of memory and time is not that of a prompt's end, and not all of it may stay."""
    steps = GroupLink()
    ranks = join(0, {1: GroupLink()}, (steps,))
    inputs = Activations(torch.int32, (3,), memoryview(bytes(12)))
    guessed = StepTokens(SessionId("a"), inputs, 1, 1, 0, Sampling(), drafts=(0, 0))

    with ranks.lead([guessed]):
        pass

    (message,) = steps.sent
    assert isinstance(message, Forward)
    assert (message.drafts, message.sampling) == ((0, 0), None)
