"""What it gains that another computer reads prompts, and that a model is held twice: `python tests/bench_apart.py DESK LAPTOP` (Linux). Not a test.

    DESK, LAPTOP          commands that run another one on these computers, each as one word: "ip netns exec desk taskset -c 0"
    --prompts 500,2000,8000   tokens, about
    --tokens 48           of an answer
    --share 0.25          of a core that the engine of DESK has; root, with cgroups
    --hidden 384 --layers 6   of a Llama with random weights
    --scheme int8
    --clients 8           of two replicas
    --parts reading,faults,replicas
    --cut, --heal         commands that cut the link of LAPTOP, and heal it: "ip -n laptop link set eth0 down"

Two nodes of this checkout with one thread each: DESK answers, and has a share of its core; LAPTOP reads. Beside each time to a first
token stands what `potluck plan --prompt` says of the same plan, with the measurements of this run. In the middle of a prompt
that LAPTOP reads, its engine is killed, or its link is cut: how long the answer takes then, and whether it has the same letters.
Then each has a whole core, and both are asked by several clients at once; in the last round LAPTOP's engine is killed.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import msgspec

from bench_leaving import make_model
from bench_rank_home import Computer
from potluck.api.v1.request_shapes import ChatCompletionRequest, ChatMessage
from potluck.api.values.schema import PlanRequest
from potluck.client import Client
from potluck.launch import find
from potluck.settings import Folders

WARM = 64  # tokens of a prompt after which all code has been used once
READY_S = 60.0
READ = "read by laptop"


@dataclass(slots=True)
class Answer:
    """What came to a client, and when, in seconds since it asked."""

    prompt: int = 0  # tokens
    tokens: int = 0  # of the answer
    text: str = ""
    times: list[float] = field(default_factory=list[float])

    @property
    def first_s(self) -> float:
        return self.times[0]

    @property
    def tokens_per_s(self) -> float:
        return (self.tokens - 1) / max(1e-9, self.times[-1] - self.times[0])

    @property
    def stood_still_s(self) -> float:
        return max((b - a for a, b in pairwise(self.times)), default=0.0)


class Desk(Computer):
    """The computer with the window: this script asks its node there."""

    def run(self, *words: str) -> subprocess.Popen[str]:
        command = self._command()
        command = [*command[: command.index("-P")], __file__, "--on", str(self._home), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def load(self, options: Mapping[str, object]) -> None:
        if self.run("load", json.dumps(options)).wait():
            raise SystemExit("The model was not loaded.")

    def answers(
        self, prompts: Sequence[str], tokens: int, meanwhile: Callable[[], None]
    ) -> list[Answer]:
        """Ask all at once. `meanwhile` is called when they have been asked."""
        asking = self.run("ask", str(tokens), json.dumps(prompts))
        assert asking.stdout is not None
        found = [Answer() for _ in prompts]
        for line in asking.stdout:
            said = json.loads(line)
            if said.get("asked"):
                threading.Thread(target=meanwhile, daemon=True).start()
                continue
            answer = found[said["client"]]
            answer.prompt = said.get("prompt", answer.prompt)
            answer.tokens = said.get("tokens", answer.tokens)
            if "piece" in said:
                answer.text += said["piece"]
                answer.times.append(said["at"])
        if asking.wait():
            raise SystemExit("There was no answer.")
        return found


# --- what runs beside the node of DESK


def on_desk(home: Path, what: str, *words: str) -> None:
    client = find(Folders.of(home))
    assert client is not None
    if what == "load":
        load(client, json.loads(words[0]))
    else:
        ask(client, int(words[0]), json.loads(words[1]))


def load(client: Client, options: dict[str, object]) -> None:
    """Load a model, and wait until all computers of its plan compute."""
    request = msgspec.convert(options, PlanRequest)
    for progress in client.load(request):
        assert progress.error is None, progress.error
    ends_at = time.monotonic() + READY_S
    computers = 2 if request.prefill or request.replicas > 1 else 1
    while time.monotonic() < ends_at:
        if len([c for c in client.state().computers if c.state == "running"]) == computers:
            return
        time.sleep(0.2)
    raise SystemExit("Not all computers of the plan were ready in time.")


def ask(client: Client, tokens: int, prompts: Sequence[str]) -> None:
    """Ask all prompts at once, and print what comes."""
    lock, began = threading.Lock(), time.monotonic()

    def say(**what: object) -> None:
        with lock:
            print(json.dumps({"at": time.monotonic() - began, **what}), flush=True)

    def one(number: int, words: str) -> None:
        asked = ChatCompletionRequest(
            model="potluck",
            messages=[ChatMessage(role="user", content=words)],
            max_tokens=tokens,
            temperature=0.0,
            ignore_eos=True,
        )
        for chunk in client.chat(asked):
            if chunk.choices:
                say(client=number, piece=chunk.choices[0].delta.content or "")
            elif chunk.usage:
                used = chunk.usage
                say(client=number, prompt=used.prompt_tokens, tokens=used.completion_tokens)

    say(asked=True)
    threads = [
        threading.Thread(target=one, args=numbered, daemon=True) for numbered in enumerate(prompts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- the computers


class Bench:
    """Two computers, and what is asked of a model of theirs."""

    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given = given
        self._lengths = [int(word) for word in given.prompts.split(",")]
        self._contexts = count(max(self._lengths) + given.tokens + 1024)
        self._names = count(1)
        self._model = make_model(folder / "model", given.layers, given.hidden)
        self._desk = Desk(given.desk, "desk", folder)
        self._laptop = Computer(given.laptop, "laptop", folder)
        self._nodes = [self._desk.start("node")]

    def begin(self) -> None:
        self._desk.wait_for("desk", "devices")
        token = json.loads(self._desk.ask("invite", "--json"))["token"]
        self._nodes.append(self._laptop.start("worker", "--join", token))
        self._desk.wait_for("laptop", "devices")

    def end(self) -> None:
        for node in self._nodes:
            node.terminate()
        for node in self._nodes:
            node.wait()

    def _load(self, *, is_read: bool = False, replicas: int = 1) -> None:
        """Load the model anew. No conversation is known, since none had this context."""
        self._desk.load(
            {
                "model": str(self._model),
                "scheme": self._given.scheme,
                "context": next(self._contexts),
                "layers": [("desk", self._given.layers)] if replicas == 1 else None,
                "prefill": ["laptop"] if is_read else [],
                "replicas": replicas,
            }
        )
        self._ask([self._prompt(WARM)])

    def _prompt(self, tokens: int) -> str:
        """A prompt of about so many tokens, which begins as no other one does."""
        bottles = " ".join(f"Bottle {number} stands on the wall." for number in range(tokens // 13))
        return f"{next(self._names)}: {bottles}"

    def _ask(
        self,
        prompts: Sequence[str],
        *,
        tokens: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Answer]:
        return self._desk.answers(prompts, tokens or self._given.tokens, meanwhile or nothing)

    def _planned_s(self, prompt: int, *, is_read: bool) -> float:
        """The time to the first token as `potluck plan` says it."""
        options = {
            "--model": self._model,
            "--scheme": self._given.scheme,
            "--layers": f"desk={self._given.layers}",
            "--context": max(self._lengths) + 2 * self._given.tokens + 1024,
            "--prompt": prompt,
        }
        words = [str(word) for option in options.items() for word in option]
        words += ["--prefill", "laptop"] if is_read else []
        return json.loads(self._desk.ask("plan", "--json", *words))["first_token_ms"] / 1000

    def reading(self) -> None:
        """Print the times of prompts that DESK reads by itself, and that LAPTOP reads."""
        with self._slow_desk():
            for is_read in (False, True):
                self._load(is_read=is_read)
                for length in self._lengths:
                    (answer,) = self._ask([self._prompt(length)])
                    planned = self._planned_s(answer.prompt, is_read=is_read)
                    say(
                        f"{answer.prompt:6d} tokens, {READ if is_read else 'alone':14}:"
                        f" first token after {answer.first_s:6.2f} s ({planned:6.2f} planned),"
                        f" then {answer.tokens_per_s:6.1f} tokens/s"
                    )

    def faults(self) -> None:
        """Print what becomes of an answer whose reader is lost in the middle of its prompt."""
        words, after_s = self._prompt(max(self._lengths)), 0.0
        told: dict[str, Answer] = {}
        with self._slow_desk():
            for name, fault, repair in self._ways():
                self._desk.wait_for("laptop", "devices")
                self._load(is_read=name != "alone")

                (told[name],) = self._ask([words], meanwhile=partial(after, after_s, fault))
                if name == READ:
                    after_s = told[name].first_s / 2
                repair()
        for name, answer in told.items():
            letters = "the same letters" if answer.text == told["alone"].text else "OTHER LETTERS"
            say(
                f"{answer.prompt:6d} tokens, {name:14}: first token after {answer.first_s:6.2f} s, then at most"
                f" {answer.stood_still_s:.2f} s between two pieces; {letters}"
            )

    def _ways(self) -> list[tuple[str, Callable[[], None], Callable[[], None]]]:
        ways = [("alone", nothing, nothing), (READ, nothing, nothing)]
        ways.append(("engine killed", self._kill, nothing))
        if self._given.cut:
            cut, heal = (
                partial(self._call, words) for words in (self._given.cut, self._given.heal)
            )
            ways.append(("link cut", cut, heal))
        return ways

    def replicas(self) -> None:
        """Print what several clients get of one replica, of two, and of two of which one is lost."""
        seconds = 0.0
        for name, held in (("once", 1), ("twice", 2), ("twice, one lost", 2)):
            self._load(replicas=held)
            prompts = [self._prompt(48) for _ in range(self._given.clients)]
            lose = partial(after, seconds / 2, self._kill) if name.endswith("lost") else nothing
            answers = self._ask(prompts, tokens=4 * self._given.tokens, meanwhile=lose)
            seconds = max(answer.times[-1] for answer in answers)
            rate = sum(answer.tokens for answer in answers) / seconds
            still = max(answer.stood_still_s for answer in answers)
            say(
                f"{len(answers)} clients, held {name:15}: {rate:6.1f} tokens/s, each answer whole after"
                f" {seconds:.2f} s at most, and at most {still:.2f} s between two pieces"
            )

    def _slow_desk(self) -> AbstractContextManager[None]:
        return self._desk.slowed(self._given.share)

    def _kill(self) -> None:
        self._laptop.engine.send_signal(signal.SIGKILL)

    def _call(self, words: str) -> None:
        subprocess.run(shlex.split(words), check=True)


def nothing() -> None:
    """No fault."""


def after(seconds: float, fault: Callable[[], None]) -> None:
    time.sleep(seconds)
    fault()


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("desk")
    parser.add_argument("laptop")
    parser.add_argument("--prompts", default="500,2000,8000")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--scheme", default="int8")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--parts", default="reading,faults,replicas")
    parser.add_argument("--cut", default="")
    parser.add_argument("--heal", default="")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bench = Bench(given, Path(folder))
        try:
            bench.begin()
            for part in given.parts.split(","):
                getattr(bench, part)()
        finally:
            bench.end()


if __name__ == "__main__":
    if sys.argv[1] == "--on":
        on_desk(Path(sys.argv[2]), *sys.argv[3:])
    else:
        main()
