"""What a bench makes of what it measures; the computers are fake, the arithmetic is not."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from fake_cluster import FakeComputer, FakeComputers, run
from model_folders import CONFIG
from seeing_variants import TEXT, gemma_4_config

from potluck.api.values.benching import BenchProgress, BenchRequest, BenchResult
from potluck.api.values.schema import PlanRequest
from potluck.cluster.events import Events
from potluck.cluster.master.bench import PROMPT_DECODE, SHORT_PROMPT, TURN, Bench, with_room
from potluck.cluster.master.master import Master
from potluck.cluster.master.models import Models
from potluck.errors import PeerLostError, UsageError
from potluck.ids import NodeId
from potluck.store.registry import LocalModel

TINY = {**CONFIG, "num_hidden_layers": 4}
LINK_MS = 0.25


class Home:
    """A master with a desk that computes."""

    def __init__(self, config: Mapping[str, object] = TINY) -> None:
        self.desk = FakeComputer("Desk", 1, ms=2.0)
        self.computers = FakeComputers(self.desk)
        self.master = Master(
            computers=self.computers,
            models=Models(
                resolve=lambda _: pytest.fail("a shape has no folder"),
                read=_no_files,
                shapes={"tiny": config},
            ),
            events=Events(),
        )
        self.asked: list[tuple[NodeId, NodeId, int]] = []

    async def bench(self, request: BenchRequest) -> list[BenchProgress]:
        await self.master.load(request.plan)
        deployment, generator = await self.master.ready(request.plan)
        bench = Bench(
            deployment,
            generator,
            request,
            local=self.desk.node_id,
            link_ms=self._link_ms,
            sums=self.master.measurements.sums.known(),
        )
        return [progress async for progress in bench.run()]

    def _link_ms(self, source: NodeId, target: NodeId, nbytes: int) -> float:
        self.asked.append((source, target, nbytes))
        return LINK_MS


async def _no_files(*_: object) -> LocalModel:
    pytest.fail("a shape has no files")


def request_of(
    *,
    prompt: int = 20,
    tokens: int = 12,
    repeat: int = 3,
    sessions: tuple[int, ...] = (),
    depth: int = 0,
    context: int | None = 64,
) -> BenchRequest:
    plan = PlanRequest(shape="tiny", scheme="int8", context=context)
    return BenchRequest(
        plan=plan, prompt=prompt, tokens=tokens, repeat=repeat, sessions=sessions, depth=depth
    )


def result_of(progress: list[BenchProgress]) -> BenchResult:
    assert progress[-1].state == "ready"
    assert progress[-1].result is not None
    return progress[-1].result


def test_the_figures_agree_with_each_other() -> None:
    async def main() -> None:
        home = Home()
        result = result_of(await home.bench(request_of()))

        assert (result.shape, result.scheme) == ("tiny", "int8")
        assert [(stage.node, stage.layers) for stage in result.stages] == [("Desk", (0, 4))]
        assert result.weight_bytes == sum(stage.weight_bytes for stage in result.stages) == 1000
        stage = result.stages[0]
        assert stage.floor_ms == pytest.approx(1.0)  # 1000 bytes at a million a second
        assert result.floor_tokens_per_s == pytest.approx(1000.0)
        assert result.floor_fraction == pytest.approx(
            result.decode_tokens_per_s / result.floor_tokens_per_s
        )
        assert result.decode_tokens_per_s == pytest.approx(1000 / result.token_ms)
        assert result.hop_ms == pytest.approx(result.token_ms - stage.compute_ms, abs=0.5)
        assert result.prefill_tokens_per_s > 0
        assert result.prompt_decode_tokens_per_s > 0
        deployment = home.master.deployment
        assert deployment is not None
        assert result.predicted_tokens_per_s == deployment.planned.plan.predicted_tokens_per_s

    run(main())


def test_ranks_of_a_group_read_at_the_same_time_and_their_sums_are_shown() -> None:
    async def main() -> None:
        home = Home()
        laptop = FakeComputer("Laptop", 2, ms=2.0)
        home.computers.workers.append(laptop)
        request = request_of()
        plan = msgspec.structs.replace(request.plan, layers=(("Desk+Laptop", 4),))
        result = result_of(await home.bench(msgspec.structs.replace(request, plan=plan)))

        assert [stage.node for stage in result.stages] == ["Desk", "Laptop"]
        assert result.floor_tokens_per_s == pytest.approx(1000.0)
        assert result.weight_bytes == 2000
        assert result.stages[0].compute_ms == result.stages[1].compute_ms
        assert {(source, target) for source, target, _ in home.asked} == {
            (home.desk.node_id, home.desk.node_id)
        }
        (both,) = result.sums
        assert both.nodes == ("Desk", "Laptop")
        assert 0 < both.token_ms < both.chunk_ms

    run(main())


def test_sums_are_of_hidden_states_without_what_goes_along_behind_them() -> None:
    async def main() -> None:
        alike = ["full_attention"] * 4
        home = Home(gemma_4_config(hidden_size_per_layer_input=8, layer_types=alike))
        home.computers.workers.append(FakeComputer("Laptop", 2, ms=2.0))
        request = request_of()
        plan = msgspec.structs.replace(request.plan, layers=(("Desk+Laptop", 4),))
        result = result_of(await home.bench(msgspec.structs.replace(request, plan=plan)))

        (both,), (cost,) = result.sums, home.master.measurements.sums.known().values()
        assert both.token_ms == cost.ms(4 * TEXT["hidden_size"])

    run(main())


def test_sessions_that_decode_at_the_same_time_are_measured_together_and_each() -> None:
    async def main() -> None:
        home = Home()
        result = result_of(await home.bench(request_of(sessions=(1, 3))))

        assert [some.n for some in result.sessions] == [1, 3]
        for some in result.sessions:
            assert 0 < some.slowest_tokens_per_s <= some.tokens_per_s * 1.01
            assert some.first_token_s > 0
        forwards = home.desk.chains[-1].forwards
        prompts = [forward for forward in forwards[-3 * 13 :] if forward.position == 0]
        assert len({forward.session for forward in prompts}) == 3

    run(main())


def test_at_a_depth_the_floor_counts_the_bytes_of_the_caches() -> None:
    async def main() -> None:
        home = Home()
        home.desk.cached_bytes = 10
        result = result_of(await home.bench(request_of(depth=30, repeat=2)))

        deep = result.depth
        assert deep is not None
        assert deep.cached == 30
        assert deep.cache_bytes == 10 * (30 + 12 // 2)
        assert deep.floor_tokens_per_s == pytest.approx(1e6 / (1000 + deep.cache_bytes))
        assert deep.floor_fraction == pytest.approx(
            deep.decode_tokens_per_s / deep.floor_tokens_per_s
        )
        assert deep.prefill_tokens_per_s > 0
        assert result.stages[0].cache_bytes == 10 * (SHORT_PROMPT + 12 // 2)
        assert result.floor_tokens_per_s == pytest.approx(1e6 / (1000 + 220))
        assert deep.predicted_tokens_per_s > 0
        assert deep.predicted_prefill_tokens_per_s > 0

    run(main())


def test_a_long_conversation_is_read_once_and_measured_from_there_each_time() -> None:
    async def main() -> None:
        home, request = Home(), request_of(depth=30, repeat=3, prompt=20, tokens=5)
        await home.bench(request)

        forwards = [f for f in home.desk.chains[-1].forwards if f.position + f.tensor.shape[0] > 29]
        (first,) = [f for f in forwards if f.position == 0]
        assert first.tensor.shape[0] == 30
        prefilled = [f.position for f in forwards if f.tensor.shape[0] == request.prompt]
        assert prefilled == [30] * 3

    run(main())


def test_a_depth_has_room_in_a_context_that_nobody_chose() -> None:
    assert with_room(request_of(depth=9000, context=None)).plan.context == 9000 + 21
    assert with_room(request_of(depth=9000, context=100)).plan.context == 100
    assert with_room(request_of(depth=90, context=None)).plan.context is None


def test_a_layer_takes_its_share_of_the_stage() -> None:
    async def main() -> None:
        result = result_of(await Home().bench(request_of()))

        assert result.layer_ms == pytest.approx(0.5)  # 2 ms of four layers
        assert result.stages[0].layer_ms == result.layer_ms

    run(main())


def test_the_links_are_those_on_the_way_of_a_token() -> None:
    async def main() -> None:
        home = Home()
        result = result_of(await home.bench(request_of()))

        assert [(source, target) for source, target, _ in home.asked] == [
            (home.desk.node_id, home.desk.node_id)
        ] * 2
        assert result.link_ms == pytest.approx(2 * LINK_MS)

    run(main())


def test_tokens_and_measurements_are_taken_in_turns() -> None:
    async def main() -> None:
        home = Home()
        request = request_of(tokens=TURN + 1, repeat=2)
        progress = await home.bench(request)

        assert home.desk.calls.count("measure") == 1 + 2 * 2
        forwards = home.desk.chains[-1].forwards
        turns = 2  # each begins with a step that is not counted
        assert len(forwards) == 2 * (turns + request.tokens) + 2 * (1 + PROMPT_DECODE)
        assert [p.state for p in progress] == ["measuring"] * 4 + ["ready"]
        assert [p.fraction for p in progress] == [0.0, 0.25, 0.5, 0.75, 1.0]

    run(main())


def test_every_prompt_is_computed_whole() -> None:
    async def main() -> None:
        home = Home()
        request = request_of(repeat=4)
        await home.bench(request)

        firsts = [f.tensor.shape[0] for f in home.desk.chains[-1].forwards if f.position == 0]
        assert firsts == [SHORT_PROMPT, request.prompt] * 4

    run(main())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"prompt": 56}, "takes 65 tokens, .* holds 64.* smaller --prompt, .* 65 or more"),
        (
            {"depth": 44, "tokens": 4},
            "takes 65 tokens, .* holds 64.* smaller --depth, .* 65 or more",
        ),
        ({"tokens": 43}, "takes 65 tokens, .* holds 64.* smaller --tokens, .* 65 or more"),
    ],
)
def test_more_than_the_context_holds_is_refused_before_a_token(
    words: dict[str, Any], sentence: str
) -> None:
    async def main() -> None:
        home = Home()
        with pytest.raises(UsageError, match=sentence):
            await home.bench(request_of(**words))
        assert not home.desk.chains[-1].forwards
        assert "measure" not in home.desk.calls

    run(main())


def test_all_that_the_context_holds_is_measured() -> None:
    async def main() -> None:
        home, request = Home(), request_of(prompt=55, tokens=42, repeat=1)
        assert result_of(await home.bench(request)).prompt_decode_tokens_per_s > 0
        turns = -(-request.tokens // TURN)
        steps = turns + request.tokens + 1 + PROMPT_DECODE
        assert len(home.desk.chains[-1].forwards) == steps

    run(main())


def test_a_computer_with_less_room_than_the_context_is_an_error_too() -> None:
    async def main() -> None:
        home = Home()
        home.desk.cache_tokens = 24
        with pytest.raises(UsageError, match="the context holds 24"):
            await home.bench(request_of())

    run(main())


def test_a_computer_that_is_lost_ends_it() -> None:
    async def main() -> None:
        home = Home()
        home.desk.errors["measure"] = [PeerLostError("gone")]
        with pytest.raises(PeerLostError):
            await home.bench(request_of())

    run(main())
