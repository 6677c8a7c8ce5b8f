"""What it gains that conversations move to a group: `python tests/bench_groups.py`. Not a test.

    --tokens 4000             of the prompt
    --hidden 768 --layers 12  of a random Llama model, in int8

A stage process has the whole model and answers. Then it and a second one compute all layers together, each a half of them. With
moving, the group takes over what was computed; without, it computes the tokens again. Both are on this computer, with a thread each,
over TLS on loopback. The time until the next answer of 8 tokens is there counts, from when the group is loaded.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("core", "tests/support")]

from stage_groups import Members, ask, forget_kept, next_prompt, unload  # noqa: E402
from stage_nodes import StageNode  # noqa: E402

from potluck.cluster.driver.generation import Generator  # noqa: E402
from potluck.model.config import ModelConfig  # noqa: E402

CONTEXT = 8192
RANDOM = {"seed": 1, "scheme": "int8", "tensors": ()}


def random_llama(hidden: int, layers: int) -> Any:
    """A model whose weights each stage makes itself."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 4096,
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 192,
        "head_dim": 64,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "eos_token_id": 1,
    }
    manifest = SimpleNamespace(model_id="ab" * 32, config=config, stage=lambda names: ())
    return SimpleNamespace(config=ModelConfig.from_dict(config), manifest=manifest, sources={})


async def measure(desk: StageNode, laptop: StageNode, model: Any, tokens: int) -> None:
    whole = Members(model, [desk], context=CONTEXT, changes=RANDOM)
    group = Members(model, [laptop, desk], 1, 1, context=CONTEXT, changes=RANDOM)
    prompt = [n % 997 for n in range(tokens)]
    for epoch in (1, 3, 5, 7):
        moves, generator = epoch % 4 == 3, Generator()
        await whole.load(epoch)
        async with whole.driver(desk, epoch) as first:
            generator.attach(first, context=CONTEXT)
            answer = await ask(generator, prompt)
            await first.drain(5.0)
            await group.load(epoch + 1, whole)
            async with group.driver(desk, epoch + 1) as second:
                first.shut()
                generator.attach(second, context=CONTEXT)
                began = time.perf_counter()
                if moves:
                    await generator.bring(first, second).run()
                brought = time.perf_counter() - began
                await ask(generator, next_prompt(prompt, answer))
                print(
                    f"{'with' if moves else 'without'} moving: {time.perf_counter() - began:.2f} s,"
                    f" {brought:.2f} of which for it; {second.sent_tokens} tokens computed",
                    flush=True,
                )
        await unload(desk, laptop)
        forget_kept(desk, laptop)


async def run(folder: Path, tokens: int, hidden: int, layers: int) -> None:
    desk = StageNode("Desk", folder / "desk")
    laptop = StageNode("Laptop", folder / "laptop", desk.identity)
    await asyncio.gather(desk.handle.start(), laptop.handle.start())
    try:
        await measure(desk, laptop, cast("Any", random_llama(hidden, layers)), tokens)
    finally:
        await asyncio.gather(desk.handle.stop(), laptop.handle.stop())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder), given.tokens, given.hidden, given.layers))


if __name__ == "__main__":
    main()
