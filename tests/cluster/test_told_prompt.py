"""A plan says when the answer begins to the prompt that was asked about."""

from dataclasses import replace
from pathlib import Path

from fake_cluster import FakeComputers, run
from fake_deployment import deployment_on, three

from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import Events
from potluck.cluster.master.master import Master
from potluck.cluster.master.models import Models
from potluck.cluster.views import plan_view
from potluck.plan.apart import Reading
from potluck.store.registry import LocalModel


def test_it_is_said_once(model: LocalModel) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        planned = (await deployment_on(model, desk, laptop, layers=(2, 2))).planned
        says = "First token of a prompt of 40 tokens after 0.4 s."
        assert "First token" not in plan_view(planned, epoch=0).explanation

        planned = replace(planned, prompt=40, first_token_ms=400.0)
        view = plan_view(planned, epoch=0)
        assert says in view.explanation.splitlines()
        assert view.first_token_ms == 400.0

        for least in (41, 40):  # who reads it says it, too
            reading = Reading(
                plan=planned.plan, least_tokens=least, most_tokens=64, explanation="Attic reads."
            )
            explanation = plan_view(replace(planned, reading=reading), epoch=0).explanation
            assert "Attic reads." in explanation
            assert (says in explanation) == (least == 41)

    run(main())


def test_it_is_planned_for_the_prompt_that_was_asked_about_within_the_context(
    model: LocalModel,
) -> None:
    async def main() -> None:
        async def read(_: Path, __: object) -> LocalModel:
            return model

        models = Models(resolve=lambda words: Path(words or "guide"), read=read)
        master = Master(computers=FakeComputers(three()[0]), models=models, events=Events())
        times: list[float] = []
        for prompt, told in ((20, 20), (40, 40), (4000, 63), (None, None)):
            planned = await master.plan(PlanRequest(context=64, scheme="f32", prompt=prompt))
            assert planned.prompt == told
            times.append(planned.first_token_ms)
        assert 0 < times[0] < times[1] < times[2]
        assert times[0] < times[3] < times[1]  # a usual one: of half the context

    run(main())
