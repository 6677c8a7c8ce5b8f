"""`bench`, with a fake node."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fake_backend import Server
from fake_bench import BENCH

from potluck.api.values import benching, schema
from potluck.cli.bench import put_result
from potluck.errors import NotEnoughMemoryError

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
FIELDS = {
    "shape", "scheme", "stages", "weight_bytes", "decode_tokens_per_s", "prefill_tokens_per_s",
    "floor_tokens_per_s", "floor_fraction", "hop_ms", "predicted_tokens_per_s", "layer_ms",
}  # fmt: skip


def test_a_bench_as_json_has_what_scripts_read(potluck: Potluck, capsys: Output) -> None:
    assert potluck("bench", "--json") == 0

    shown = capsys.readouterr().out
    assert msgspec.json.decode(shown, type=benching.BenchResult) == BENCH
    assert json.loads(shown).keys() >= FIELDS
    assert json.loads(shown)["stages"][0].keys() >= {
        "node", "device", "layers", "weight_bytes", "compute_ms", "read_bytes_per_s",
    }  # fmt: skip


def test_a_bench_for_people(potluck: Potluck, capsys: Output) -> None:
    potluck("bench")

    shown, progress = capsys.readouterr()
    assert "Making random weights of llama-1b: 50%" in progress
    assert "Sending" not in progress
    assert "llama-1b in int4, 700 MB of weights a token" in shown
    assert "25.0 tokens/s, 88% of the floor (28.5); 24.5 predicted" in shown
    assert "20 GB/s" in shown
    assert "A layer takes 2150 µs." in shown
    assert "After 4096 cached tokens: 19.0 tokens/s, 79% of the floor with 134 MB of cache" in shown
    assert "(24.0); 20.5 predicted. Prefill there: 110.0 tokens/s." in shown


def test_a_bench_of_an_older_node_has_no_prediction_for_the_prompt(
    capsys: Output,
) -> None:
    told = msgspec.to_builtins(BENCH)
    del told["predicted_prefill_tokens_per_s"]

    put_result(msgspec.convert(told, benching.BenchResult))

    assert "Prefill: 200.0 tokens/s, of 512.\n" in capsys.readouterr().out


def test_what_was_asked_for_reaches_the_node(
    server: Server, potluck: Potluck, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()

    potluck("bench")
    potluck(
        "bench", "--shape", "qwen-0.5b", "--scheme", "int8", "--layers", "a=20,b=4", "--workers",
        "2", "--prompt", "100", "--tokens", "7", "--repeat", "3", "--threads", "1",
        "--depth", "4096",
    )  # fmt: skip
    potluck("bench", "--model", str(tmp_path / "model"))

    first, second, third = server.backend.benched
    assert first == benching.BenchRequest(plan=schema.PlanRequest(shape="llama-1b"))
    assert second == benching.BenchRequest(
        plan=schema.PlanRequest(
            shape="qwen-0.5b", scheme="int8", layers=(("a", 20), ("b", 4)), workers=2
        ),
        prompt=100,
        tokens=7,
        repeat=3,
        threads=1,
        depth=4096,
    )
    assert third.plan == schema.PlanRequest(model=str(tmp_path / "model"))


@pytest.mark.parametrize(
    "words",
    [
        ("--shape", "llama-1t"),
        ("--shape", "llama-1b", "--model", "somewhere"),
        ("--tokens", "0"),
        ("--threads", "0"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    server: Server, potluck: Potluck, words: tuple[str, ...]
) -> None:
    assert potluck("bench", *words) == 2
    assert server.backend.benched == []


def test_a_bench_that_fails_says_why(server: Server, potluck: Potluck, capsys: Output) -> None:
    server.backend.load_error = NotEnoughMemoryError(12_000_000_000, 8_000_000_000)

    assert potluck("bench") == NotEnoughMemoryError.exit_status
    assert "4 GB are missing" in capsys.readouterr().err
