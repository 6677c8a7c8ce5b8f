"""`bench`: how fast a model runs, compared with the floor and with the prediction."""

import argparse
from contextlib import closing

from potluck.api.values.benching import BenchRequest, BenchResult, BenchStage
from potluck.cli.computers import open_client
from potluck.cli.plan import plan_request
from potluck.cli.terminal import PHASES, Progress, put, put_json, put_table
from potluck.client import Client
from potluck.errors import format_bytes
from potluck.model.shapes.table import DEFAULT_SHAPE


def bench(options: argparse.Namespace) -> int:
    """Measure, and print the result."""
    shape: str | None = options.shape
    if options.model is None and shape is None:
        shape = DEFAULT_SHAPE
    client, _ = open_client(options)
    request = BenchRequest(
        plan=plan_request(options, shape=shape),
        prompt=options.prompt,
        tokens=options.tokens,
        repeat=options.repeat,
        threads=options.threads,
        sessions=options.sessions,
        depth=options.depth,
    )
    result = _measure(client, request)
    if options.json:
        put_json(result)
    else:
        put_result(result)
    return 0


def _measure(client: Client, request: BenchRequest) -> BenchResult:
    """Measure with progress on the terminal. Ctrl-C closes the generator and ends the bench."""
    result = None
    with closing(Progress()) as progress, closing(client.bench(request)) as events:
        for event in events:
            what = event.message or "Measuring"
            if (load := event.load) is not None:
                what = load.message or PHASES[load.state]
            progress.show(what, event.fraction)
            result = event.result
    assert result is not None  # the client raises an error if there is no result
    return result


def put_result(result: BenchResult) -> None:
    """Print the result for people."""
    put(
        f"{result.shape} in {result.scheme}, {format_bytes(result.weight_bytes)} of weights a token"
    )
    rows = [_row(stage) for stage in result.stages]
    head = ("COMPUTER", "DEVICE", "LAYERS", "WEIGHTS", "READS", "AT BEST", "COMPUTES", "PREDICTED")
    put_table(head, rows)
    put(
        f"Decode: {result.decode_tokens_per_s:.1f} tokens/s, {result.floor_fraction:.0%} of the"
        f" floor ({result.floor_tokens_per_s:.1f}); {result.predicted_tokens_per_s:.1f} predicted."
    )
    put(f"After {result.prompt} tokens: {result.prompt_decode_tokens_per_s:.1f} tokens/s.")
    predicted = result.predicted_prefill_tokens_per_s
    told = f"; {predicted:.1f} predicted" if predicted else ""
    put(f"Prefill: {result.prefill_tokens_per_s:.1f} tokens/s, of {result.prompt}{told}.")
    if (deep := result.depth) is not None:
        predicted = deep.predicted_prefill_tokens_per_s
        told = f"; {predicted:.1f} predicted" if predicted else ""
        put(
            f"After {deep.cached} cached tokens: {deep.decode_tokens_per_s:.1f} tokens/s, {deep.floor_fraction:.0%}"
            f" of the floor with {format_bytes(deep.cache_bytes)} of cache ({deep.floor_tokens_per_s:.1f});"
            f" {deep.predicted_tokens_per_s:.1f} predicted. Prefill there: {deep.prefill_tokens_per_s:.1f}"
            f" tokens/s{told}."
        )
    computed = result.token_ms - result.hop_ms
    put(
        f"A token takes {result.token_ms:.2f} ms: {computed:.2f} computing, {result.hop_ms:.2f} on"
        f" its way. The links were measured at {result.link_ms:.2f}."
    )
    put(f"A layer takes {1000 * result.layer_ms:.0f} µs.")
    for both in result.sums:
        put(
            f"A sum of {' + '.join(both.nodes)} takes {both.token_ms:.2f} ms for a token, and"
            f" {both.chunk_ms:.1f} ms for {both.chunk_tokens} tokens of a prompt."
        )
    for some in result.sessions:
        put(
            f"{some.n} at a time: {some.tokens_per_s:.1f} tokens/s together, {some.slowest_tokens_per_s:.1f}"
            f" the slowest; the last first token after {some.first_token_s:.2f} s."
        )


def _row(stage: BenchStage) -> tuple[str, ...]:
    start, stop = stage.layers
    return (
        stage.node,
        stage.device,
        f"{start} to {stop - 1}" if stop > start else "none",
        format_bytes(stage.weight_bytes),
        f"{format_bytes(round(stage.read_bytes_per_s))}/s",
        f"{stage.floor_ms:.2f} ms",
        f"{stage.compute_ms:.2f} ms",
        f"{stage.predicted_ms:.2f} ms",
    )
