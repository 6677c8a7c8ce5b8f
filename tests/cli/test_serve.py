"""`serve`, with a fake node, and with a real one that is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import shared_kernels
from byte_model import make_byte_model
from fake_backend import MODEL_ID, PLAN, Server

from potluck.api.values import schema
from potluck.launch import find
from potluck.settings import Folders, read_node_file

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]
Spawn = Callable[..., "subprocess.Popen[str]"]
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot send SIGTERM")
CORE = Path(__file__).parents[2] / "core"


@posix
def test_serve_answers_others_until_it_is_ended_and_undoes_it(server: Server, spawn: Spawn) -> None:
    process = spawn("serve", "--port", "0", "--key", "a-key-that-is-long")
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("Serving at "):
        assert line
    url = line.split()[-1]
    answer = httpx.get(
        f"{url}/models", headers={"authorization": "Bearer a-key-that-is-long"}, trust_env=False
    )
    refused = httpx.get(f"{url}/models", trust_env=False)
    assert process.stdout.readline() == "Ctrl-C ends it.\n"
    server.update(notices=(schema.Notice(id=1, level="info", text="Laptop is back."),))
    told = process.stdout.readline()
    process.terminate()

    assert process.wait(20) == 0
    assert (answer.status_code, refused.status_code) == (200, 401)
    assert told == "Laptop is back.\n"
    assert server.backend.current.model.state == "none"  # it loaded it, so it unloads it
    assert "serve" in server.backend.held


@posix
def test_serve_leaves_a_model_that_was_loaded_before(server: Server, spawn: Spawn) -> None:
    loaded = schema.ModelState(name="guide", model_id=MODEL_ID, state="ready", plan=PLAN)
    server.update(model=loaded)

    process = spawn("serve", "--port", "0")
    assert process.stdout is not None
    while "Ctrl-C" not in (line := process.stdout.readline()):
        assert line
    process.terminate()

    assert process.wait(20) == 0
    assert server.backend.current.model.state == "ready"


def test_a_taken_port_is_told_before_anything_is_loaded(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("serve", "--port", str(server.port)) == 2

    assert f"Port {server.port} is taken" in capsys.readouterr().err
    assert server.backend.planned == []


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--host", "0.0.0.0"], "potluck keys add"), (["--key", "short"], "too short")],
)
def test_serve_asks_for_a_good_key(
    server: Server, potluck: Potluck, capsys: Output, words: list[str], said: str
) -> None:
    assert potluck("serve", *words) == 2

    assert said in capsys.readouterr().err
    assert server.backend.planned == []


@posix
def test_an_answer_ends_with_an_error_when_serve_is_ended(server: Server, spawn: Spawn) -> None:
    server.backend.endless = True
    process = spawn("serve", "--port", "0")
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("Serving at "):
        assert line
    url = line.split()[-1]
    with httpx.stream(
        "POST", f"{url}/completions", json={"prompt": "a", "stream": True}, trust_env=False
    ) as response:
        lines = (line for line in response.iter_lines() if line)
        first = next(lines)
        process.send_signal(signal.SIGINT)
        last = list(lines)[-1]

    assert "Hello" in first
    assert "stopped serving" in last
    assert process.wait(20) == 0


# --- a real node


class Serving:
    """`potluck serve` of a tiny model with random weights, in a home of its own."""

    def __init__(self, base: Path) -> None:
        shared_kernels.share_with(base / "home")
        self.folders = Folders.of(base / "home")
        model = make_byte_model(base / "model")
        words = ["serve", "--port", "0", "--model", str(model), "--context", "2048"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "potluck", *words, "--home", str(base / "home")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CORE)},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def ask(self, *, request_id: str, **body: object) -> Iterator[dict[str, Any]]:
        """Stream the chunks of an answer; the last one of an answer that broke off has an error."""
        asked = {"prompt": "hello", "max_tokens": 600, "ignore_eos": True, "stream": True, **body}
        headers = {"x-request-id": request_id}
        with (
            httpx.Client(trust_env=False, timeout=60) as client,
            client.stream(
                "POST", f"{self.url}/completions", json=asked, headers=headers
            ) as response,
        ):
            assert response.headers["x-request-id"] == request_id
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))

    def node(self) -> psutil.Process:
        found = read_node_file(self.folders)
        assert found is not None
        return psutil.Process(found.pid)

    def kill_node(self) -> None:
        self.node().kill()


def has_ended(process: psutil.Process) -> bool:
    """Wait for the end of a process that may have no parent to take note of it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def text(chunks: Iterator[dict[str, Any]]) -> str:
    """The whole text of an answer that ended properly."""
    whole = list(chunks)
    assert not any("error" in chunk for chunk in whole)
    choices = [chunk["choices"][0] for chunk in whole]
    assert choices[-1]["finish_reason"] == "length"
    return "".join(choice["text"] for choice in choices)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Serving]:
    running = Serving(tmp_path)
    yield running
    running.process.kill()
    with running.process:
        pass
    if (node := find(running.folders)) is not None:
        node.shutdown()


@posix
@pytest.mark.slow
def test_an_answer_goes_on_to_the_letter_when_its_node_is_killed_and_the_node_ends_with_serve(
    real: Serving,
) -> None:
    undisturbed = text(real.ask(request_id="one", seed=7))

    chunks = real.ask(request_id="two", seed=7)
    first = [next(chunks) for _ in range(30)]
    real.kill_node()

    assert text(iter([*first, *chunks])) == undisturbed

    node = real.node()
    real.process.kill()
    assert has_ended(node)
