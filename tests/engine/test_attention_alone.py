"""Attention alone, of layers whose decoding is generated, is that of torch."""

import pytest
import torch
from tiny_models import CPU

from potluck.engine.attention_alone import attention_call, generated_layers
from potluck.engine.kernels import ReferenceKernels, best_kernels
from potluck.engine.kvcache import LayerCache
from potluck.engine.weights import random_weights
from potluck.model.config import ModelConfig
from potluck.model.schemes import Scheme

POSITION = 37
CONFIG = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 16,
    "attn_logit_softcapping": 30.0,
    "query_pre_attn_scalar": 20,
}

pytestmark = pytest.mark.skipif(
    isinstance(best_kernels(), ReferenceKernels), reason="nothing is generated here"
)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("scheme", ["int8", "bf16"])
@pytest.mark.parametrize(
    ("family", "first_row"),
    [("LlamaForCausalLM", 0), ("Gemma2ForCausalLM", 0), ("Gemma2ForCausalLM", 9)],
)
def test_it_attends_as_torch_does(
    family: str, first_row: int, scheme: Scheme, threads: int
) -> None:
    config = ModelConfig.from_dict({**CONFIG, "architectures": [family]})
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weights = random_weights(
            config,
            range(config.num_layers),
            embedding=False,
            head=False,
            scheme=scheme,
            device=CPU,
        )
        generated = generated_layers(weights.runs)
        assert list(generated) == list(range(config.num_layers))
        for layer, run in generated.items():
            heads, block = run.heads, weights.blocks[layer]
            cache = LayerCache(config.num_kv_heads, config.head_dim, weights.cache_dtype, CPU)
            cache.resize(POSITION + 5, 0)
            cache.both.normal_()
            if block.attention.window is not None:
                cache.first = first_row
            queries = torch.randn(heads.heads, heads.head_dim)

            out = attention_call(block, run, queries.flatten(), cache, POSITION)()

            window = block.attention.window
            first = 0 if window is None else max(0, POSITION + 1 - window)
            rows = slice(first - cache.first, POSITION + 1 - cache.first)
            kept = cache.both[:, :, rows].float()
            keys, values = kept.repeat_interleave(heads.group, 1)
            scores = heads.scale * (keys @ queries[..., None])[..., 0]
            if heads.softcap is not None:
                scores = heads.softcap * (scores / heads.softcap).tanh()
            expected = (scores.softmax(-1)[:, None] @ values)[:, 0]
            torch.testing.assert_close(out, expected.flatten(), rtol=1e-3, atol=1e-4)
    finally:
        torch.set_num_threads(before)
