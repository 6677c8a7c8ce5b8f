"""What GGUF files say of Qwen's delta nets, and of what Qwen 4 has beside them."""

from collections.abc import Mapping
from itertools import accumulate
from typing import cast

from potluck.model.gguf.keys import Config, Keys
from potluck.model.gguf.mixtures import partial_rotary, qwen2_experts
from potluck.model.limits import MAX_HEADS, MAX_LAYERS
from potluck.model.mixing.ngrams import GIVEN_MULTIPLIERS, GIVEN_ROWS, GIVEN_SIZES, OWN_END

_TABLE = "per_layer_token_embd"
_STREAMS = {
    "hc_norm": "norm",
    "input_mix_weight_down": "down",
    "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}
QWEN_4_NAMES: Mapping[str, tuple[str, ...]] = {
    f"{ours}_hyper_connection.{part}": (f"hc_{theirs}_{other}",)
    for ours, theirs in (("attn", "attn"), ("mlp", "ffn"))
    for part, other in _STREAMS.items()
} | {
    **{
        f"model.hyper_connection_mixer.{part}": (f"/output_hc_{other}",)
        for part, other in _STREAMS.items()
    },
    **{f"ple.{part}_proj": (f"ple_{part}",) for part in ("key", "value")},
    **{f"ple.norm_{part}": (f"ple_norm_{part}",) for part in ("key", "query", "conv")},
    "ple.conv1d": ("ple_conv1d",),
    "ple.ple_embedding.ngram_embedding.shard_0": (f"/{_TABLE}",),
    **{f"self_attn.indexer.{part}_layernorm": (f"indexer.{part}_norm",) for part in ("q", "k")},
    **{f"self_attn.indexer.index_{part}_proj": (f"indexer.{part}_proj",) for part in ("q", "k")},
}


def delta_nets(keys: Keys, config: Config) -> None:
    """Set the delta nets of Qwen3-Next and 3.5."""
    partial_rotary(keys, config)
    heads = keys.integer("ssm.time_step_rank")
    if heads < 1:
        raise keys.invalid("ssm.time_step_rank", "must be at least 1")
    config |= {
        "full_attention_interval": keys.integer("full_attention_interval", 4),
        "linear_conv_kernel_dim": keys.integer("ssm.conv_kernel"),
        "linear_key_head_dim": keys.integer("ssm.state_size"),
        "linear_value_head_dim": keys.integer("ssm.inner_size") // heads,
        "linear_num_key_heads": keys.integer("ssm.group_count"),
        "linear_num_value_heads": heads,
    }


def delta_net_experts(keys: Keys, config: Config) -> None:
    """Set delta nets, and experts with a shared one."""
    delta_nets(keys, config)
    qwen2_experts(keys, config)
    config["norm_topk_prob"] = True  # llama.cpp always normalises (src/models/qwen3next.cpp)


def qwen_4(keys: Keys, config: Config) -> None:
    """Set residual streams, the indexer, and the table of n-grams with the numbers that its hashes are made with."""
    delta_net_experts(keys, config)
    ratios = keys.items(f"{keys.architecture}.attention.compress_ratios")[:MAX_LAYERS]
    blocks = {ratio for ratio in ratios if ratio}
    if len(blocks) != 1:
        raise keys.invalid("attention.compress_ratios", "must be the same where it is not 0")
    config |= {
        "output_gate_type": "sigmoid",  # llama.cpp knows it (src/models/qwen4exp.cpp)
        "hc_count": keys.integer("hyper_connection.count"),
        "hc_lowrank": keys.integer("hyper_connection.low_rank"),
        "indexer_n_heads": keys.integer("attention.indexer.head_count"),
        "indexer_kv_heads": 1,
        "indexer_head_dim": keys.integer("attention.indexer.key_length"),
        "indexer_budget": keys.integer("attention.indexer.top_k"),
        "indexer_compress_ratio": blocks.pop(),
    }
    if (layers := keys.items(f"{keys.architecture}.ple.layers")[:MAX_LAYERS]) != ():
        _table(keys, config, layers)


def _table(keys: Keys, config: Config, layers: object) -> None:
    numbers = [layer for layer in cast("list[object]", layers) if isinstance(layer, int)]
    if len(numbers) != 1:
        raise keys.invalid("ple.layers", "must be one layer, since the file has one table")
    order, heads = keys.integer("ple.ngram_size"), keys.integer("ple.heads_per_ngram")
    total = max(0, order - 1) * heads
    if not 0 < total <= MAX_HEADS:
        raise keys.invalid("ple.heads_per_ngram", f"must make 1 to {MAX_HEADS} heads")
    sizes, offsets = (
        list(keys.items(f"{keys.architecture}.ple.head_{name}"))[:total]
        for name in ("vocab_sizes", "offsets")
    )
    whole = [size for size in sizes if isinstance(size, int)]
    if len(whole) != total or offsets != [0, *accumulate(whole)][:total]:
        raise keys.invalid("ple.head_offsets", "must be the sums of ple.head_vocab_sizes")
    config |= {
        "ple_layer_ids": [numbers[0] + 1],
        "ngram_size": order,
        "heads_per_ngram": heads,
        "ple_embed_dim": total * keys.integer("embedding_length_per_layer_input"),
        "ple_conv_kernel_size": keys.integer("ple.conv_kernel"),
        "split_ngram_parts": 1,
        GIVEN_MULTIPLIERS: list(keys.items(f"{keys.architecture}.ple.layer_multipliers"))[:order],
        GIVEN_SIZES: sizes,
        GIVEN_ROWS: keys.rows(f"{_TABLE}.weight"),
        OWN_END: keys.integer("ple.eos_token_id"),
    }
