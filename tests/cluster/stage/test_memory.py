"""A real stage process keeps nothing that its weights and caches do not need."""

import sys
from pathlib import Path

import psutil
import pytest
from fake_cluster import Run
from stage_nodes import Driver, StageNode

from potluck.cluster.driver.generation import Generator
from potluck.cluster.driver.token import Usage
from potluck.cluster.processes.messages import LoadStage
from potluck.model.caches import CacheSizes
from potluck.model.config import ModelConfig
from potluck.wire.activation_messages import Sampling
from potluck.wire.measuring_messages import Profile

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is counted otherwise elsewhere"),
]

# A layer's working memory is that of a Llama-3.2-1B, its weights are half of them.
CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 8192,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
PROMPT, CONTEXT = 512, 2048
# Bytes beyond a process that has computed nothing: 24 MB, most of them LLVM's. A prompt that is not given
# back takes 33 more, heaps of several threads up to 30.
MOST = 40e6


def own_bytes(process: psutil.Process) -> int:
    """Of its memory what stands in no file: of those, what is in memory depends on who else reads them."""
    memory = process.memory_info()
    return memory.rss - memory.shared


def test_little_is_taken_beside_weights_and_caches_after_a_profile_a_load_and_a_prompt(
    tmp_path: Path, run: Run
) -> None:
    config = ModelConfig.from_dict(CONFIG)

    async def main() -> None:
        node = StageNode("Desk", tmp_path)
        process = await node.start()
        started = own_bytes(process)
        try:
            await node.handle.profile(Profile(config=CONFIG, scheme="int4", tokens=256))
            profiled = own_bytes(process)
            loaded, _ = await node.load(
                LoadStage(
                    home=node.home,
                    epoch=1,
                    model_id="ab" * 32,
                    config=CONFIG,
                    scheme="int4",
                    layers=(0, 2),
                    embedding=True,
                    head=True,
                    context=CONTEXT,
                    tensors=(),
                    seed=0,
                    next_hop=None,
                )
            )
            async with Driver(node, node) as pipeline:
                generator = Generator()
                generator.attach(pipeline, context=CONTEXT)
                prompt = [number % 1000 for number in range(PROMPT)]
                stream = generator.tokens(prompt, Sampling(), limit=4, usage=Usage())
                assert len([token async for token in stream]) == 4
                answered = own_bytes(process)
        finally:
            await node.handle.stop()
        # One token more than the prompt made room for twice as many.
        mixer = config.layers[0].mixer
        assert mixer is not None
        spec = mixer.cache(CacheSizes(number_bytes=2))
        cache = config.num_layers * spec.nbytes(2 * PROMPT)
        assert profiled - started < MOST
        assert answered - loaded.memory_bytes - cache - started < MOST

    run(main())
