"""How long an answer stands still when a computer leaves: `python tests/bench_leaving.py DESK ATTIC`. Not a test.

    DESK, ATTIC           commands that run another one on these computers, each as one word: "ip netns exec desk taskset -c 0"
    --prompt 3000         tokens of the prompt, about
    --layers 12  --hidden 768    of a Llama with random weights
    --tokens 150          of the answer
    --share 1.0           of a core that each engine has after the first tokens; root, with cgroups
    --ways pause,free     how the attic leaves: politely, or as its owner wants the memory now

Two nodes of this checkout, each with one thread, have half of the layers each. In the middle of an answer the attic leaves. With
moving, its caches go to the desk; without (the desk's program is told not to), all tokens are computed again. The longest
time between two pieces of the answer counts, and the bytes that leave the attic.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bench_rank_home import Computer
from potluck.api.v1.request_shapes import ChatCompletionRequest, ChatMessage
from potluck.api.values.schema import PlanRequest
from potluck.launch import find
from potluck.settings import Folders

BEFORE = 10  # pieces of the answer that come before the computer leaves
ROOT = Path(__file__).parents[1]
WITHOUT = (
    "from potluck.cluster.master.taking_over import TakingOver as t; t.take = lambda self: None;"
    "import runpy; runpy.run_module('potluck', run_name='__main__', alter_sys=True)"
)


class Desk(Computer):
    """A computer whose program moves no conversations, if it is told not to."""

    moves = True

    def _command(self, *words: str) -> list[str]:
        command = super()._command(*words)
        if self.moves:
            return command
        at = command.index("-m")
        return [*command[:at], "-c", WITHOUT, *command[at + 2 :]]

    def asked(self, *words: str) -> subprocess.Popen[str]:
        """This script there, beside the node."""
        command = Computer._command(self)
        command = [*command[: command.index("-P")], __file__, "--ask", str(self._home), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def sent_bytes(on: str) -> int:
    command = [*on.split(), "cat", "/sys/class/net/eth0/statistics/tx_bytes"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def make_model(folder: Path, layers: int, hidden: int) -> Path:
    """The guide's tokenizer, and a Llama with random weights."""
    guide = ROOT / "assets" / "guide"
    shutil.copytree(guide, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((guide / "config.json").read_text())
    kv, middle = hidden // 3, 3 * hidden
    config |= {
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": kv // 64,
        "head_dim": 64,
        "max_position_embeddings": 16384,
    }
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns), np.float32) * 0.02).astype(np.float16)

    shapes = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
    }
    ones = np.ones(hidden, np.float16)
    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    tensors["model.norm.weight"] = ones
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name, shape in shapes.items():
            tensors[f"{prefix}{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = ones
    save_file(tensors, folder / "model.safetensors")
    return folder


def ask(home: Path, model: Path, layers: int, tokens: int, limit: int) -> None:
    """Load the model in halves, and print the time of each piece of an answer."""
    client = find(Folders.of(home))
    assert client is not None
    halves = (("desk", layers - layers // 2), ("attic", layers // 2))
    request = PlanRequest(model=str(model), layers=halves, context=8192, scheme="int8")
    for progress in client.load(request):
        assert progress.error is None, progress.error
    words = " ".join(f"Bottle {number} stands on the wall." for number in range(tokens // 7))
    message = ChatMessage(role="user", content=words)
    asked = ChatCompletionRequest(
        model="potluck", messages=[message], max_tokens=limit, temperature=0.0, ignore_eos=True
    )
    for chunk in client.chat(asked):
        if chunk.choices:
            print(json.dumps({"at": time.monotonic()}), flush=True)
        elif chunk.usage:
            print(json.dumps({"prompt": chunk.usage.prompt_tokens}), flush=True)


def slow_down(stack: ExitStack, share: float, *computers: Computer) -> None:
    for computer in computers:
        stack.enter_context(computer.slowed(share))


def measure(
    desk: Desk,
    attic: Computer,
    attic_on: str,
    way: str,
    words: list[str],
    slow: Callable[[], None],
) -> None:
    asking = desk.asked(*words)
    assert asking.stdout is not None
    times: list[float] = []
    left = sent = 0.0
    prompt = 0
    for line in asking.stdout:
        said = json.loads(line)
        prompt = said.get("prompt", prompt)
        times += [said["at"]] if "at" in said else []
        if len(times) == BEFORE // 2:
            slow()
        if len(times) == BEFORE and not left:
            sent, left = sent_bytes(attic_on), time.monotonic()
            attic.ask(way)
    pauses = [b - a for a, b in pairwise(times) if b > left]
    usual = sorted(pauses)[len(pauses) // 2]
    before = sorted(b - a for a, b in pairwise(times[BEFORE // 2 : BEFORE]))[BEFORE // 4]
    time.sleep(1.0)
    print(
        f"{way:6} {'with' if desk.moves else 'without':8} prompt of {prompt}: stands still for"
        f" {max(pauses):.2f} s, else {1000 * before:.0f} ms a piece before it, and"
        f" {1000 * usual:.0f} later;"
        f" the attic has sent {(sent_bytes(attic_on) - sent) / 1e6:.1f} MB",
        flush=True,
    )
    attic.ask("resume")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("desk")
    parser.add_argument("attic")
    parser.add_argument("--prompt", type=int, default=3000)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--ways", default="pause,free")
    given = parser.parse_args()
    for moves in (True, False):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            model = make_model(Path(folder) / "model", given.layers, given.hidden)
            desk = Desk(given.desk, "desk", Path(folder))
            attic = Computer(given.attic, "attic", Path(folder))
            desk.moves = moves
            started = [desk.start("node")]
            try:
                desk.wait_for("desk", "devices")
                token = json.loads(desk.ask("invite", "--json"))["token"]
                started.append(attic.start("worker", "--join", token))
                desk.wait_for("attic", "devices")
                words = [str(model), str(given.layers), str(given.prompt)]
                words.append(str(given.tokens))
                for way in given.ways.split(","):
                    with ExitStack() as slowed:
                        slow = partial(slow_down, slowed, given.share, desk, attic)
                        measure(desk, attic, given.attic, way, words, slow)
            finally:
                for node in started:
                    node.terminate()
                for node in started:
                    node.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask(Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
    else:
        main()
