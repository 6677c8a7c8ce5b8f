"""How much sooner an answer comes with guesses over a network: `python tests/bench_drafts_home.py DESK ATTIC`. Not a test.

    DESK, ATTIC           commands that run another one on these computers, each as one word: "ip netns exec desk taskset -c 0"
    --layers 12  --hidden 768    of a Llama with random weights
    --tokens 200          of an answer

Two nodes of this checkout, each with one thread, have half of the layers each. The answers are greedy, where random
weights soon repeat themselves, and drawn of two tokens, of which one comes more often. They must be the same with guesses and
without, which the desk's program is told to make none.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_leaving import make_model
from bench_rank_home import Computer
from potluck.api.v1.request_shapes import ChatCompletionRequest, ChatMessage
from potluck.api.values.schema import PlanRequest
from potluck.launch import find
from potluck.settings import Folders

WITHOUT = (
    "from potluck.cluster.driver.conversation import Conversation as c; c._may_guess = property(lambda self: False);"
    "import runpy; runpy.run_module('potluck', run_name='__main__', alter_sys=True)"
)
KINDS = {"greedy": (0.0, None), "drawn": (1.0, {"300": 100.0, "301": 97.5})}


class Desk(Computer):
    """A computer whose program guesses no tokens, if it is told not to."""

    guesses = True

    def _command(self, *words: str) -> list[str]:
        command = super()._command(*words)
        if self.guesses:
            return command
        at = command.index("-m")
        return [*command[:at], "-c", WITHOUT, *command[at + 2 :]]

    def asked(self, *words: str) -> list[tuple[str, str, float, int]]:
        """What this script says there, beside the node."""
        command = Computer._command(self)
        command = [*command[: command.index("-P")], __file__, "--ask", str(self._home), *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)


def ask(home: Path, model: Path, layers: int, tokens: int) -> None:
    """Load the model in halves, and print each answer, what it took after its first piece, and how many tokens were guessed."""
    client = find(Folders.of(home))
    assert client is not None
    halves = (("desk", layers - layers // 2), ("attic", layers // 2))
    for progress in client.load(PlanRequest(model=str(model), layers=halves, scheme="int8")):
        assert progress.error is None, progress.error
    said: list[tuple[str, str, float, int]] = []
    for kind, (temperature, bias) in KINDS.items():
        asked = ChatCompletionRequest(
            model="potluck", messages=[ChatMessage(role="user", content="Bottles on the wall")],
            max_tokens=tokens, temperature=temperature, logit_bias=bias, seed=5, ignore_eos=True,
        )  # fmt: skip
        began, text, guessed = 0.0, "", 0
        for chunk in client.chat(asked):
            if chunk.choices:
                began = began or time.monotonic()
                text += chunk.choices[0].delta.content or ""
            if chunk.potluck:
                guessed = chunk.potluck.guessed_tokens
        said.append((kind, text, time.monotonic() - began, guessed))
    print(json.dumps(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("desk")
    parser.add_argument("attic")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=200)
    given = parser.parse_args()
    found: list[list[tuple[str, str, float, int]]] = []
    for guesses in (False, True):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            model = make_model(Path(folder) / "model", given.layers, given.hidden)
            desk = Desk(given.desk, "desk", Path(folder))
            attic = Computer(given.attic, "attic", Path(folder))
            desk.guesses = guesses
            started = [desk.start("node")]
            try:
                desk.wait_for("desk", "devices")
                token = json.loads(desk.ask("invite", "--json"))["token"]
                started.append(attic.start("worker", "--join", token))
                desk.wait_for("attic", "devices")
                found.append(desk.asked(str(model), str(given.layers), str(given.tokens)))
            finally:
                for node in started:
                    node.terminate()
                for node in started:
                    node.wait()
    for (kind, text, alone, _), (_, same, guessed, right) in zip(*found, strict=True):
        assert text == same
        print(
            f"{kind:6} {given.tokens} tokens: {alone:.2f} s, with guesses {guessed:.2f} s, {right} guessed right",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask(Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        main()
