"""A bench over two whole nodes, before and after which the model of before is there."""

from typing import cast

import pytest
from fake_cluster import Run
from whole_nodes import SPLIT, chat, load

from potluck.api.values.benching import BenchRequest
from potluck.api.values.schema import PlanRequest
from potluck.cluster.node import Node
from potluck.errors import UsageError
from potluck.model.shapes.table import SHAPES

pytestmark = [pytest.mark.slow, pytest.mark.net]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """A shape that is measured in a moment."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    monkeypatch.setitem(cast("dict[str, object]", SHAPES), "tiny", config)
    return "tiny"


def test_a_shape_is_measured_over_two_computers_and_makes_way_again(
    desk: Node, run: Run, tiny: str
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        before = await chat(desk)
        plan = PlanRequest(
            shape=tiny, scheme="int4", layers=(("Desk", 1), ("Laptop", 3)), context=128
        )
        request = BenchRequest(plan=plan, prompt=40, tokens=9, repeat=2)

        seen = [progress async for progress in desk.backend.bench(request)]

        states = [progress.state for progress in seen]
        assert states == sorted(states, key=["loading", "measuring", "ready"].index)
        result = seen[-1].result
        assert result is not None
        assert [(stage.node, stage.layers) for stage in result.stages] == [
            ("Desk", (0, 1)),
            ("Laptop", (1, 4)),
        ]
        assert result.weight_bytes == sum(stage.weight_bytes for stage in result.stages)
        assert result.floor_tokens_per_s == pytest.approx(
            1000 / sum(stage.floor_ms for stage in result.stages)
        )
        assert result.floor_fraction == pytest.approx(
            result.decode_tokens_per_s / result.floor_tokens_per_s
        )
        assert result.stages[0].head_ms == 0 < result.stages[1].head_ms
        assert 0 < result.hop_ms < result.token_ms
        assert result.link_ms > 0

        assert desk.master.deployment is None
        assert await chat(desk) == before  # the model of before, loaded again

    run(main())


def test_what_is_loaded_is_loaded_again_to_be_measured_with_other_threads(
    desk: Node, run: Run
) -> None:
    async def main() -> None:
        await load(desk, SPLIT)
        for threads, is_kept in ((None, True), (2, False)):
            before = desk.master.deployment
            request = BenchRequest(plan=SPLIT, prompt=20, tokens=4, repeat=1, threads=threads)
            seen = [progress async for progress in desk.backend.bench(request)]

            assert seen[-1].result is not None
            assert (desk.master.deployment is before) == is_kept

    run(main())


def test_a_bench_that_nobody_waits_for_ends(desk: Node, run: Run, tiny: str) -> None:
    async def main() -> None:
        plan = PlanRequest(shape=tiny, scheme="f32", layers=(("Desk", 4),), context=128)
        events = desk.backend.bench(BenchRequest(plan=plan, prompt=40, tokens=9, repeat=1000))
        async for progress in events:
            if progress.state == "measuring":
                break
        with pytest.raises(UsageError, match="random weights"):
            await chat(desk)
        await events.aclose()

        assert desk.master.deployment is None
        assert desk.master.state.phase is None

    run(main())
