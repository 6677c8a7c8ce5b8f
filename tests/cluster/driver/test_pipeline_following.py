"""A chosen token is sent back in by the thread that received it."""

import asyncio

import msgspec
import pytest
from fake_chain import FakeChain
from fake_cluster import run
from two_links import CHAT, follow, on_two_links, result, start

from potluck.cluster.driver.pipeline import Pipeline
from potluck.errors import PeerLostError
from potluck.ids import SessionId
from potluck.wire.activation_messages import Result, Sampling


def test_a_token_is_sent_back_in_by_who_received_it() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2)
        pipeline._receive(result(step=1), memoryview(b""))  # and nobody has awaited anything

        assert [(f.step, f.position) for f in first.forwards] == [(1, 0), (2, 2)]
        assert two.token == 7
        last.say(result(step=2, position=3))
        assert (await one.future).result.step == 1
        assert (await two.future).result.step == 2

    on_two_links(scenario)


def test_a_step_that_is_asked_for_late_follows_at_once() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        assert follow(pipeline, 2).token == 7
        assert len(first.forwards) == 2

    on_two_links(scenario)


def test_a_step_follows_the_one_before_it_and_no_other() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        two = start(pipeline, 2)  # a prompt of the same session
        three = follow(pipeline, 3)
        last.say(result(step=3))  # that was never sent
        last.say(result(step=2))
        await two.future
        assert [f.step for f in first.forwards] == [1, 2, 3]
        assert not three.future.done()

    on_two_links(scenario)


def test_a_step_that_was_sent_is_not_sent_again_when_the_one_before_it_is_done() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), start(pipeline, 2)
        last.say(result(step=1))
        await one.future
        assert [f.step for f in first.forwards] == [1, 2]
        assert two.token is None

    on_two_links(scenario)


def test_a_step_whose_number_is_not_the_next_does_not_follow() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        assert follow(pipeline, 3).token is None
        assert len(first.forwards) == 1

    on_two_links(scenario)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_chunk_that_came_to_no_token_has_nothing_to_send_back_in(is_late: bool) -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        two = None if is_late else follow(pipeline, 2)
        last.say(result(step=1, token=None))
        await one.future
        assert (two or follow(pipeline, 2)).token is None
        assert len(first.forwards) == 1

    on_two_links(scenario)


def test_a_session_that_was_closed_has_nothing_to_follow() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        last.say(result(step=1))
        await one.future
        pipeline.close(CHAT)
        assert follow(pipeline, 2).token is None

    on_two_links(scenario)


def test_how_long_a_step_took_is_counted_from_when_it_was_sent() -> None:
    async def main() -> None:
        now = 100.0
        link = FakeChain()
        link.is_silent = True
        pipeline = Pipeline(epoch=3, first=link, last=link, stages=1, clock=lambda: now)
        one, two = start(pipeline, 1), follow(pipeline, 2)
        now = 100.25
        pipeline._receive(result(step=1), memoryview(b""))  # which sends the second
        now = 101.0
        pipeline._receive(result(step=2, position=3), memoryview(b""))
        assert (await one.future).seconds == 0.25
        assert (await two.future).seconds == 0.75

    run(main())


def test_a_token_that_ends_the_answer_is_not_sent_back_in() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2, stops=(7,))
        last.say(result(step=1))
        await one.future
        assert two.token is None
        assert len(first.forwards) == 1

    on_two_links(scenario)


def test_a_result_that_comes_twice_counts_once() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2, stops=(7,))
        for token in (7, 8):
            pipeline._receive(result(step=1, token=token), memoryview(b""))
        assert (await one.future).result.token_id == 7
        assert two.token is None

    on_two_links(scenario)


def test_a_result_of_a_step_that_was_just_given_up_harms_nothing() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        errors = list[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        one = start(pipeline)
        pipeline._receive(result(), memoryview(b""))
        pipeline.give_up(one)
        await asyncio.sleep(0)
        assert not errors

    on_two_links(scenario)


def test_a_step_that_was_given_up_is_not_sent() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one, two = start(pipeline, 1), follow(pipeline, 2)
        pipeline.give_up(two)
        last.say(result(step=1))
        await one.future
        assert len(first.forwards) == 1

    on_two_links(scenario)


def test_steps_that_were_to_follow_fail_with_the_pipeline() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        start(pipeline, 1)
        two = follow(pipeline, 2)
        first.break_off()
        with pytest.raises(PeerLostError):
            await two.future
        with pytest.raises(PeerLostError):
            await follow(pipeline, 3).future

    on_two_links(scenario)


def test_a_token_that_came_is_handed_out_though_it_cannot_be_sent_back_in() -> None:
    def refuse(*_: object) -> None:
        raise PeerLostError("gone")

    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        one = start(pipeline, 1)
        follow(pipeline, 2)
        first.send_nowait = refuse  # type: ignore[method-assign]
        pipeline._receive(result(step=1), memoryview(b""))
        assert (await one.future).result.token_id == 7

    on_two_links(scenario)


def test_tokens_that_were_chosen_together_are_sent_back_in_together() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, _: FakeChain) -> None:
        names = [SessionId(name) for name in "abcd"]
        for name in names:
            pipeline.start_step(name, step=1, position=0, tokens=[1, 2], sampling=Sampling())
        followed = names[:3]  # nobody wants the token after that of the last one
        for name in followed:
            pipeline.follow(name, step=2, sampling=Sampling())
        first.forwards.clear()

        for more, name in ((3, "a"), (2, "b"), (1, "c"), (0, "d")):
            assert not first.forwards
            one = Result(epoch=3, session=name, step=1, position=2, token_id=7, more=more)
            pipeline._receive(one, memoryview(b""))

        sent = [(forward.session, forward.more) for forward in first.forwards]
        assert sent == [("a", 2), ("b", 1), ("c", 0)]

    on_two_links(scenario)


def test_a_token_that_waits_for_others_is_sent_before_what_is_said_of_its_session() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, _: FakeChain) -> None:
        start(pipeline, 1)
        follow(pipeline, 2)
        one = Result(epoch=3, session=CHAT, step=1, position=2, token_id=7, more=1)
        pipeline._receive(one, memoryview(b""))
        assert len(first.forwards) == 1

        pipeline.trim(CHAT, 2)

        assert [forward.step for forward in first.forwards] == [1, 2]

    on_two_links(scenario)


def test_how_long_tokens_are_on_the_way_is_known_after_a_few_of_them() -> None:
    async def scenario(pipeline: Pipeline, first: FakeChain, last: FakeChain) -> None:
        start(pipeline, 1)
        steps = [follow(pipeline, step) for step in range(2, 10)]
        for step in range(1, 10):
            assert pipeline.times.hops_ms() is None
            last.say(
                msgspec.structs.replace(result(step=step, position=1 + step), compute_ms=(1e6, 1e6))
            )
        await steps[-1].future

        on_the_way = pipeline.times.hops_ms()
        assert on_the_way is not None
        assert -2e6 <= on_the_way < -1.9e6  # the fake computers say that they took 2,000 s
        assert pipeline.times.hops_ms() is None

    on_two_links(scenario)
