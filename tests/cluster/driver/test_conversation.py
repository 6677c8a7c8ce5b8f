"""What an answer needs to go on is in its conversation: tokens, what is cached, and how it ends."""

import pytest
from chain_answers import GREEDY
from fake_chain import FakeChain
from fake_cluster import run

from potluck.cluster.driver.conversation import Conversation
from potluck.cluster.driver.pipeline import Pipeline
from potluck.ids import SessionId
from potluck.wire.activation_messages import MAX_HISTORY, Sampling

PROMPT = [1, 2, 3, 4, 5, 6]


class Sink(FakeChain):
    """Takes what is sent and answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = True


def conversation(tokens: list[int], sampling: Sampling = GREEDY) -> tuple[Conversation, Sink]:
    """One that begins to answer on a pipeline; call it in an event loop."""
    sink = Sink()
    made = Conversation(SessionId("chat"))
    made.begin_answer(tokens, sampling, limit=3, stops={99})
    made.enter(Pipeline(epoch=1, first=sink, last=sink, stages=1), 10)
    return made, sink


@pytest.mark.parametrize(
    ("prompt", "tokens", "left"),
    [([1], [5], 2), ([1], [5, 6, 7], 0), ([1], [99], 0), ([1] * 8, [5], 1), ([1] * 9, [5], 0)],
)
def test_an_answer_ends_by_its_limit_its_context_or_a_stop(
    prompt: list[int], tokens: list[int], left: int
) -> None:
    async def main() -> None:
        made, _ = conversation(prompt)
        assert [made.give_out(token) for token in tokens][-1] == left
        assert made.given == len(tokens)
        assert made.tokens == prompt + tokens

    run(main())


def test_without_a_limit_an_answer_may_fill_the_context() -> None:
    async def main() -> None:
        made, _ = conversation([1, 2])
        made.limit = None
        assert made.give_out(5) == 7

    run(main())


def test_only_what_was_sent_counts_as_cached() -> None:
    async def main() -> None:
        made, sink = conversation([1, 2, 3, 4, 5])
        made.send_step(2)
        made.send_step(2)
        assert made.cached == 4
        assert made.begin_answer([1, 2, 3, 4, 5, 6], GREEDY) == 4
        assert not sink.trims
        assert made.begin_answer([1, 2, 3], GREEDY) == 2  # the last token is always computed
        assert sink.trims == [2]

    run(main())


def test_what_was_sent_ahead_is_kept_whether_it_was_read_or_not() -> None:
    async def main() -> None:
        made, _ = conversation([1, 2])
        made.send_step(2)
        made.give_out(7)
        made.sent_ahead([7, 8])
        assert made.tokens == [1, 2, 7, 8]
        assert made.shares([1, 2, 7, 8, 9]) == 4

    run(main())


def test_a_stage_that_claims_to_hold_more_than_there_is_changes_nothing() -> None:
    async def main() -> None:
        made, sink = conversation([1, 2, 3])
        made.send_step(9)
        made.rewind(1 << 40)
        assert made.cached == 0  # where the step began that computed the last token
        assert sink.trims == [0]

    run(main())


def test_the_history_is_that_of_the_last_tokens() -> None:
    async def main() -> None:
        tokens = list(range(MAX_HISTORY + 2))
        made, sink = conversation(tokens, Sampling(repetition_penalty=1.2))
        made.send_step(len(tokens))
        sent = sink.forwards[0].sampling
        assert sent is not None
        assert sent.history == tuple(tokens[2:])

    run(main())
