"""Computers with an older program: plans do without them where they must, and nothing is sent to them."""

import pytest
from fake_cluster import run
from fake_deployment import deployment_on, three
from fake_home import SPLIT, Home, small
from model_folders import CONFIG
from packing_engine import Workplace

from potluck.api.values.schema import PlanRequest
from potluck.errors import (
    InvalidLayersError,
    NotEnoughMemoryError,
    UsageError,
    VersionMismatchError,
)
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme
from potluck.store.registry import LocalModel
from potluck.wire.versions import PROTOCOL_VERSIONS, check_age

EVEN = {
    **CONFIG,
    "hidden_size": 64,
    "intermediate_size": 64,
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True},
}
OLD, NEW = min(PROTOCOL_VERSIONS), max(PROTOCOL_VERSIONS)
SEEING = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {**CONFIG, "model_type": "gemma3_text", "head_dim": 8},
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 4,
    },
    "mm_tokens_per_image": 16,
}
TOO_OLD = "Laptop cannot share weights in int4, since its Potluck is too old. Update it there."


@pytest.mark.parametrize(
    ("fields", "scheme", "what"),
    [
        (CONFIG, "bf16", None),
        (CONFIG, "int8", None),
        (CONFIG, "int4", "weights in int4"),
        (CONFIG, "int4-head8", "weights in int4-head8"),
        (
            EVEN,
            "int4-head8",
            None,
        ),  # integers without offsets, in the bytes that were always so
        (SEEING, "bf16", "a model that sees pictures"),
    ],
)
def test_an_older_program_shares_what_it_computes_the_same_way(
    fields: dict[str, object], scheme: Scheme, what: str | None
) -> None:
    config = ModelConfig.from_dict(fields)
    check_age("Laptop", NEW, config, scheme)
    if what is None:
        check_age("Laptop", OLD, config, scheme)
        return
    with pytest.raises(VersionMismatchError) as caught:
        check_age("Laptop", OLD, config, scheme)
    assert caught.value.message == (
        f"Laptop cannot share {what}, since its Potluck is too old. Update it there."
    )


def test_a_plan_in_force_is_refused_before_anything_is_sent(
    model: LocalModel, workplace: Workplace
) -> None:
    async def main() -> None:
        desk, laptop, _ = three()
        deployment = await deployment_on(model, desk, laptop, layers=(2, 2), workplace=workplace)
        laptop.version = OLD
        with pytest.raises(VersionMismatchError, match=TOO_OLD):
            await deployment.start()
        with pytest.raises(VersionMismatchError, match=TOO_OLD):
            await deployment.send_ahead(lambda _: False, lambda *_: True)
        assert not workplace.engine.packed
        assert laptop.calls == []

    run(main())


@pytest.mark.parametrize("old", ["Laptop", "Mac"])
def test_neither_who_reads_nor_who_answers_may_be_older(model: LocalModel, old: str) -> None:
    async def main() -> None:
        desk, laptop, mac = three()
        answering = await deployment_on(model, desk, laptop, layers=(2, 2))
        reading = await deployment_on(model, mac, layers=(4,))
        reading._answering = answering
        {"Laptop": laptop, "Mac": mac}[old].version = OLD
        with pytest.raises(
            VersionMismatchError, match=f"{old} cannot take part where some computers"
        ):
            await reading.start()
        assert mac.assigned == []
        await answering.start()  # nobody reads for it
        await answering.stop()

    run(main())


def test_a_plan_does_without_it_and_says_so(home: Home) -> None:
    async def main() -> None:
        home.laptop.version = OLD
        planned = await home.master.plan(PlanRequest(context=64, scheme="int4"))
        assert [stage.name for stage in planned.plan.stages] == ["Desk"]
        assert planned.note == f"Laptop is left out: {TOO_OLD}"
        assert home.laptop.measured == []

        both = await home.master.plan(PlanRequest(context=64, scheme="int8", layers=SPLIT.layers))
        assert [stage.name for stage in both.plan.stages] == ["Desk", "Laptop"]
        assert both.note == ""

    run(main())


def test_where_it_cannot_be_missed_a_scheme_is_taken_that_it_knows(home: Home) -> None:
    async def main() -> None:
        home.laptop.version = OLD
        for computer in (home.desk, home.laptop):
            computer.devices = (small(computer, 40_000),)
        planned = await home.master.plan(PlanRequest(context=64, workers=1))
        assert (planned.scheme, len(planned.plan.stages)) == ("int8", 2)

    run(main())


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (PlanRequest(context=64, scheme="int4", layers=SPLIT.layers), InvalidLayersError),
        (PlanRequest(context=64, scheme="int4", workers=1), UsageError),
        (PlanRequest(context=64, scheme="int4"), NotEnoughMemoryError),
    ],
)
def test_an_error_for_want_of_it_names_it(
    home: Home, request_: PlanRequest, error: type[Exception]
) -> None:
    async def main() -> None:
        home.laptop.version = OLD
        if error is NotEnoughMemoryError:
            home.desk.devices = (small(home.desk, 9_000),)
        with pytest.raises(error, match=TOO_OLD):
            await home.master.plan(request_)

    run(main())
