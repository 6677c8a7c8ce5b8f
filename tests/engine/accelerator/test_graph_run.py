"""Layers and a head as graphs: captured once, again when memory moves, and done without if need be."""

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from config_layers import attention
from tape_graphs import TapeGraphs, broken_graphs
from tiny_models import CPU, Reference
from torch import Tensor

from potluck.engine.accelerator.graph_run import GraphedHead, GraphRun, graph_runs
from potluck.engine.accelerator.graphs import Replay
from potluck.engine.caches.kvcache import LayerCache
from potluck.engine.layers.attention import Step
from potluck.engine.layers.blocks import DecoderLayer, LayerRun
from potluck.engine.layers.rotary import Rotary
from potluck.engine.loading.stage_weights import StageWeights

pytestmark = pytest.mark.usefixtures("torch_alone")

MakeReference = Callable[..., Reference]

VARIANTS = ["llama", "llama, biases", "gemma 2", "gemma 3", "phi 4 mini, short, partial", "granite"]
CONTEXT = 1600
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with torch.inference_mode():
        yield


@pytest.fixture
def weights(llama: Reference) -> StageWeights:
    return llama.stage(embedding=False).weights


class Session:
    """Two equal caches: one for the graphs, one for the layers themselves."""

    def __init__(self, weights: StageWeights, prompt: int, capacity: int) -> None:
        config = weights.config
        self._weights = weights
        self._rotaries = [Rotary(rope, CONTEXT, torch.float32, CPU) for rope in config.ropes]
        self.position = 0
        self.caches, self._others = (
            [
                LayerCache(
                    attention(config.layers[0].mixer).kv_heads, config.head_dim, torch.float32, CPU
                )
                for _ in weights.blocks
            ]
            for _ in range(2)
        )
        self.resize(capacity)
        self.prefill(prompt)

    def resize(self, capacity: int, layers: int | None = None) -> None:
        """Let the caches hold so many tokens, or those of the first layers."""
        for cache in (*self.caches[:layers], *self._others[:layers]):
            before = cache.both.shape[2]
            cache.resize(capacity, min(before, self.position))
            cache.both[:, :, self.position :].fill_(torch.nan)

    def prefill(self, tokens: int) -> None:
        """Run a chunk of so many tokens."""
        x = torch.randn(tokens, self._weights.config.hidden_size)
        step = Step(self.position, tokens, self._rotaries, CPU)
        for block, cache, other in zip(
            self._weights.blocks, self.caches, self._others, strict=True
        ):
            x = block.forward(x, cache, step)
            written = slice(self.position, step.end)
            other.both[:, :, written] = cache.both[:, :, written]
        self.position = step.end

    def error(self, runs: list[GraphRun]) -> float:
        """Return the error of one more token, relative to the result of the layers."""
        step = Step(self.position, 1, self._rotaries, CPU)
        x = torch.randn(1, self._weights.config.hidden_size)
        given, y = x.clone(), x
        for run in runs:
            y = run(y, self.caches, step)
        expected = LayerRun(0, self._weights.blocks)(x, self._others, step)
        self.position += 1
        assert torch.equal(x, given)
        error = ((y - expected).norm() / expected.norm()).item()
        return math.inf if math.isnan(error) else error  # which `max` would not see


class Other:
    """A mixer that is no attention. It gives back its input."""

    matrices = ()
    nbytes = 0

    def __call__(self, x: Tensor, *_: object) -> Tensor:
        return x


def graph_run(weights: StageWeights, graphs: TapeGraphs) -> list[GraphRun]:
    return [GraphRun(0, weights.blocks, graphs)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_replayed_token_is_what_the_layers_make_of_it(
    make_reference: MakeReference, variant: str
) -> None:
    weights = make_reference(variant).stage(embedding=False, head=False).weights
    graphs = TapeGraphs()
    runs, session = graph_run(weights, graphs), Session(weights, 9, 256)

    errors = [session.error(runs) for _ in range(20)]

    assert max(errors) < TOLERANCE
    assert [tape.replays for tape in graphs.captured] == [20]


def test_a_stage_may_have_several_runs(weights: StageWeights) -> None:
    graphs = TapeGraphs()
    runs = [GraphRun(0, weights.blocks[:1], graphs), GraphRun(1, weights.blocks[1:], graphs)]
    session = Session(weights, 9, 256)

    errors = [session.error(runs) for _ in range(5)]

    assert max(errors) < TOLERANCE
    assert graphs.tries == 2


def test_a_cache_that_moved_is_captured_anew(weights: StageWeights) -> None:
    graphs = TapeGraphs()
    runs, session = graph_run(weights, graphs), Session(weights, 250, 256)

    errors = [session.error(runs) for _ in range(6)]
    session.resize(600)
    errors += [session.error(runs) for _ in range(6)]

    assert max(errors) < TOLERANCE
    assert graphs.tries == 2


def test_a_longer_prefix_is_captured_anew_and_a_shorter_one_is_still_there(
    weights: StageWeights,
) -> None:
    graphs = TapeGraphs()
    runs, session = graph_run(weights, graphs), Session(weights, 254, 600)

    errors = [session.error(runs) for _ in range(4)]
    session.position = 200  # trimmed
    errors += [session.error(runs) for _ in range(2)]

    assert max(errors) < TOLERANCE
    assert graphs.tries == 2


def test_sessions_have_graphs_of_their_own(weights: StageWeights) -> None:
    graphs = TapeGraphs()
    runs = graph_run(weights, graphs)
    sessions = [Session(weights, tokens, 256) for tokens in (3, 8)]

    errors = [session.error(runs) for _ in range(4) for session in sessions]

    assert max(errors) < TOLERANCE
    assert [tape.replays for tape in graphs.captured] == [4, 4]


def test_more_sessions_in_turns_than_are_kept_do_not_push_each_other_out(
    weights: StageWeights,
) -> None:
    graphs = TapeGraphs()
    runs = graph_run(weights, graphs)
    sessions = [Session(weights, 4, 256) for _ in range(10)]

    errors = [session.error(runs) for _ in range(3) for session in sessions]

    assert max(errors) < TOLERANCE
    assert graphs.tries == 8


def test_a_graph_long_unused_gives_way(weights: StageWeights) -> None:
    graphs = TapeGraphs()
    runs = graph_run(weights, graphs)
    sessions = [Session(weights, 4, 256) for _ in range(9)]
    for session in sessions[:8]:
        session.error(runs)

    errors = [sessions[7].error(runs) for _ in range(65)]
    errors.append(sessions[8].error(runs))

    assert max(errors) < TOLERANCE
    assert graphs.tries == 9


class Nothing:
    def replay(self) -> None: ...


class CountingGraphs:
    """Keeps nothing of what is captured, so that only the run keeps it."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Replay]] = []

    def capture(self, body: Callable[[], None]) -> Replay:
        body()
        work = Nothing()
        self.made.append(weakref.ref(work))
        return work


def test_graphs_of_caches_that_are_gone_are_let_go(weights: StageWeights) -> None:
    graphs = CountingGraphs()
    run = GraphRun(0, weights.blocks, graphs)
    session = Session(weights, 4, 256)
    session.error([run])

    del session
    gc.collect()
    other = Session(weights, 4, 256)
    other.error([run])

    assert [made() is None for made in graphs.made] == [True, False]


def test_what_cannot_be_captured_is_computed_all_the_same_and_not_tried_again(
    weights: StageWeights, caplog: pytest.LogCaptureFixture
) -> None:
    graphs = broken_graphs()
    runs, session = graph_run(weights, graphs), Session(weights, 4, 256)

    errors = [session.error(runs) for _ in range(4)]

    assert max(errors) < TOLERANCE
    assert graphs.tries == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "4 layers" in caplog.text


def test_memory_that_ran_out_for_a_moment_does_not_end_graphs_for_good(
    weights: StageWeights,
) -> None:
    graphs = TapeGraphs(torch.OutOfMemoryError("CUDA out of memory."), failures=1)
    runs, session = graph_run(weights, graphs), Session(weights, 4, 256)

    errors = [session.error(runs) for _ in range(64)]
    tried = graphs.tries
    errors += [session.error(runs) for _ in range(6)]

    assert max(errors) < TOLERANCE
    assert (tried, graphs.tries) == (1, 2)
    assert [tape.replays for tape in graphs.captured] == [6]


def test_graphs_that_are_there_are_replayed_while_there_is_no_memory_for_another(
    weights: StageWeights,
) -> None:
    graphs = TapeGraphs()
    runs = graph_run(weights, graphs)
    sessions = [Session(weights, tokens, 256) for tokens in (3, 8)]
    errors = [sessions[0].error(runs)]
    graphs.failure = torch.OutOfMemoryError("CUDA out of memory.")

    errors += [session.error(runs) for _ in range(4) for session in sessions]

    assert max(errors) < TOLERANCE
    assert [tape.replays for tape in graphs.captured] == [5]
    assert graphs.tries == 2


def test_a_cache_that_could_not_grow_in_all_layers_is_replayed_all_the_same(
    weights: StageWeights,
) -> None:
    graphs = TapeGraphs()
    runs, session = graph_run(weights, graphs), Session(weights, 520, 768)

    errors = [session.error(runs)]
    session.resize(1536, layers=2)  # memory ran out behind them
    errors += [session.error(runs) for _ in range(3)]
    session.resize(1536)
    errors += [session.error(runs) for _ in range(3)]

    assert max(errors) < TOLERANCE
    assert [tape.replays for tape in graphs.captured] == [1, 3, 3]


def test_what_a_chunk_left_behind_that_was_trimmed_again_does_not_show(
    weights: StageWeights,
) -> None:
    graphs = TapeGraphs()
    runs, session = graph_run(weights, graphs), Session(weights, 9, 256)
    errors = [session.error(runs) for _ in range(3)]

    for cache in session.caches:  # keys that overflowed, of tokens that were taken back
        cache.both[:, :, 5:90].fill_(torch.nan)
    session.position = 5
    errors += [session.error(runs) for _ in range(3)]

    assert max(errors) < TOLERANCE
    assert [tape.replays for tape in graphs.captured] == [6]


def test_chunks_and_tokens_take_turns_over_a_session_that_grows(weights: StageWeights) -> None:
    graphs = TapeGraphs()
    runs, session = graph_run(weights, graphs), Session(weights, 30, 600)

    errors = [session.error(runs) for _ in range(3)]
    session.prefill(200)
    errors += [session.error(runs) for _ in range(40)]  # across 256
    session.resize(1200)
    session.prefill(70)
    errors += [session.error(runs) for _ in range(3)]
    session.position = 40  # trimmed
    errors += [session.error(runs) for _ in range(3)]
    session.prefill(9)
    errors += [session.error(runs) for _ in range(3)]

    assert max(errors) < TOLERANCE


def test_layers_with_experts_stay_as_they_are(make_reference: MakeReference) -> None:
    reference = make_reference("qwen 3 moe, some layers, odd")
    weights = reference.stage(embedding=False, head=False).weights
    graphs = TapeGraphs()
    runs = graph_runs(weights.blocks, graphs)
    session = Session(weights, 9, 256)

    errors = [session.error(list(runs)) for _ in range(6)]  # pyright: ignore[reportArgumentType]

    assert [type(run) for run in runs] == [GraphRun, LayerRun, GraphRun]
    assert max(errors) < TOLERANCE
    assert [tape.replays for tape in graphs.captured] == [6, 6]


def test_only_layers_with_attention_are_captured(weights: StageWeights) -> None:
    """A graph has rows of tokens for each layer, which a recurrent state has not."""
    first, second, *others = weights.blocks
    mixer: Any = Other()
    second = DecoderLayer(second.spec, mixer, second.mlp, second.norms)

    runs = graph_runs([first, second, *others], TapeGraphs())

    assert [type(run) for run in runs] == [GraphRun, LayerRun, GraphRun]


def test_waiting_for_the_device_cannot_be_captured() -> None:
    """As on a GPU; this is what the tests above rely on."""
    x = torch.ones(1)

    def body() -> None:
        x.add_(x.sum().item())

    with pytest.raises(RuntimeError, match="not permitted"):
        TapeGraphs().capture(body)


def test_a_head_is_captured_once(llama: Reference) -> None:
    graphs = TapeGraphs()
    own = llama.stage().head
    assert own is not None
    head = GraphedHead(graphs)
    hidden = [torch.randn(1, llama.config.hidden_size) for _ in range(3)]

    logits = [head(x, own.logits) for x in hidden]

    assert graphs.tries == 1
    for x, ours in zip(hidden, logits, strict=True):
        assert torch.equal(ours, own.logits(x))


def test_a_head_that_cannot_be_captured_is_computed(llama: Reference) -> None:
    graphs = broken_graphs()
    own = llama.stage().head
    assert own is not None
    head = GraphedHead(graphs)
    hidden: list[Tensor] = [torch.randn(1, llama.config.hidden_size) for _ in range(3)]

    logits = [head(x, own.logits) for x in hidden]

    assert graphs.tries == 1
    assert all(torch.equal(ours, own.logits(x)) for x, ours in zip(hidden, logits, strict=True))
