"""A generator and its conversations go on under another plan of the same model."""

from contextlib import suppress

import msgspec
import pytest
from chain_answers import expected
from fake_cluster import failing, run, until
from fake_home import SPLIT, TINY, Home

from potluck.api.values.schema import PlanRequest
from potluck.cluster.driver.token import Usage
from potluck.cluster.events import ModelChanged
from potluck.cluster.master.deadlines import PlanningDeadlines
from potluck.errors import EngineError, PeerLostError
from potluck.plan.byhand import by_hand
from potluck.store.registry import LocalModel
from potluck.wire.activation_messages import Sampling

ALONE = msgspec.structs.replace(SPLIT, layers=(("Desk", 4),))


async def session_of(home: Home, prompt: list[int]) -> str:
    """Answer a prompt; return the session that it was computed in."""
    _, generator = await home.master.ready(PlanRequest())
    async for _ in generator.tokens(prompt, Sampling(), limit=1, usage=Usage()):
        pass
    return home.desk.chains[-1].forwards[-1].session


@pytest.mark.parametrize(
    ("other", "goes_on"),
    [
        (ALONE, True),
        (msgspec.structs.replace(SPLIT, scheme="int8"), False),
        (msgspec.structs.replace(SPLIT, cache="int8"), False),
        (msgspec.structs.replace(SPLIT, context=32), False),
    ],
    ids=["other cut", "other scheme", "other cache", "other context"],
)
def test_conversations_go_on_when_the_same_model_is_loaded_again(
    home: Home, other: PlanRequest, goes_on: bool
) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        session = await session_of(home, [1, 2, 3])
        await home.master.load(other)
        assert (await session_of(home, [1, 2, 3, 4]) == session) == goes_on

    run(main())


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (PlanRequest(), "guide"),
        (PlanRequest(model="guide"), "guide"),
        (PlanRequest(model="/models/Qwen3-8B"), "Qwen3-8B"),
        (TINY, "tiny"),
    ],
    ids=["nothing chosen", "guide", "folder", "shape"],
)
def test_a_model_has_its_name_from_the_first_moment_of_its_load(
    home: Home, asked: PlanRequest, name: str
) -> None:
    async def main() -> None:
        names: list[str | None] = []
        home.events.on(ModelChanged, lambda _: names.append(home.master.state.name))
        home.open_error = EngineError("No.")
        with suppress(EngineError):
            await home.master.load(asked)
        assert names[0] == name

    run(main())


@pytest.mark.parametrize("layers", [SPLIT.layers, (("Laptop+Desk", 4),)], ids=["split", "group"])
def test_the_plan_in_force_is_weighed_as_it_would_be_made_today(
    home: Home, layers: tuple[tuple[str, int], ...]
) -> None:
    async def main() -> None:
        asked = PlanRequest(layers=layers, context=64, scheme="f32")
        plan = (await home.master.plan(asked)).plan
        again = (await home.master.plan(msgspec.structs.replace(asked, layers=by_hand(plan)))).plan
        assert again.stages == plan.stages
        assert len(plan.stages) == 2

    run(main())


def test_conversations_go_on_without_a_lost_computer_and_after_an_unload(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        session = await session_of(home, [1, 2, 3])
        home.lose_laptop()
        assert await session_of(home, [1, 2, 3]) == session
        assert home.stages == ["Desk"]
        await home.master.unload()
        await home.master.load(ALONE)
        assert await session_of(home, [1, 2, 3]) == session

    run(main())


def test_conversations_go_on_after_a_load_of_another_model_that_failed(home: Home) -> None:
    async def main() -> None:
        await home.master.load(SPLIT)
        session = await session_of(home, [1, 2, 3])
        home.desk.errors["load"] = failing(EngineError("No."))
        with pytest.raises(EngineError):
            await home.master.load(TINY)
        await home.master.load(SPLIT)
        assert await session_of(home, [1, 2, 3]) == session

    run(main())


def test_an_answer_whose_model_was_replaced_ends(home: Home) -> None:
    async def main() -> None:
        await home.master.load(ALONE)
        _, generator = await home.master.ready(PlanRequest())
        stream = generator.tokens([1, 2, 3], Sampling(), usage=Usage())
        await anext(stream)
        await home.master.load(TINY)
        with pytest.raises(PeerLostError, match="Another model"):
            async for _ in stream:
                pass

    run(main())


@pytest.mark.parametrize("answers_s", [3600.0, 0.0])
def test_a_faster_plan_waits_for_the_answers_under_way_but_not_for_ever(
    model: LocalModel, answers_s: float
) -> None:
    async def main() -> None:
        home = Home(model, deadlines=PlanningDeadlines(improve_s=0.0, answers_s=answers_s))
        home.desk._ms, home.laptop._ms = 1000.0, 1.0
        home.computers.workers.clear()
        await home.master.load(PlanRequest(context=64))
        _, generator = await home.master.ready(PlanRequest())
        stream = generator.tokens([1, 2], Sampling(), limit=9, usage=Usage())
        tokens = [(await anext(stream)).token_id]
        await home.computers.come(home.laptop)
        home.master.weigh()
        await until(lambda: home.laptop.is_loaded)
        await until(lambda: not home.master._weighing.is_under_way or answers_s)

        assert home.stages == (["Desk"] if answers_s else ["Laptop"])
        tokens += [token.token_id async for token in stream]
        assert tokens == expected([1, 2], 9)
        await until(lambda: not home.master._weighing.is_under_way)
        assert home.stages == ["Laptop"]

    run(main())


def test_an_answer_read_slowly_goes_on_where_its_model_was_loaded_again(home: Home) -> None:
    async def main() -> None:
        await home.master.load(ALONE)
        _, generator = await home.master.ready(PlanRequest())
        stream = generator.tokens([1, 2], Sampling(), limit=9, usage=Usage())
        tokens = [(await anext(stream)).token_id]
        await home.master.load(SPLIT)
        tokens += [token.token_id async for token in stream]
        assert tokens == expected([1, 2], 9)

    run(main())


@pytest.mark.parametrize("part", ["readers", "replicas"])
def test_a_plan_goes_out_of_force_also_if_what_is_beside_it_does_not_end_as_it_should(
    home: Home, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(**_: object) -> None:
        raise RuntimeError

    async def main() -> None:
        await home.master.load(SPLIT)
        pipeline = home.master.deployment and home.master.deployment.pipeline
        assert pipeline is not None
        monkeypatch.setattr(getattr(home.master, part), "end", fails)
        await home.master.unload()
        assert pipeline.broken is not None
        assert not home.desk.is_loaded
        assert not home.laptop.is_loaded

    run(main())
