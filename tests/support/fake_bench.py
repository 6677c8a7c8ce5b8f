"""The measurement that the fake backend answers with."""

from potluck.api.values import benching

BENCH = benching.BenchResult(
    shape="llama-1b",
    scheme="int4",
    prompt=512,
    tokens=64,
    repeat=5,
    stages=(
        benching.BenchStage(
            node="here",
            device="cpu",
            layers=(0, 16),
            weight_bytes=700_000_000,
            read_bytes_per_s=2e10,
            floor_ms=35.0,
            compute_ms=39.0,
            predicted_ms=40.0,
            layer_ms=2.15,
            head_ms=5.0,
        ),
    ),
    weight_bytes=700_000_000,
    decode_tokens_per_s=25.0,
    prompt_decode_tokens_per_s=24.0,
    prefill_tokens_per_s=200.0,
    floor_tokens_per_s=28.5,
    floor_fraction=0.877,
    token_ms=40.0,
    hop_ms=1.0,
    link_ms=0.5,
    layer_ms=2.15,
    predicted_tokens_per_s=24.5,
    predicted_prefill_tokens_per_s=190.0,
    depth=benching.BenchDepth(
        cached=4096,
        cache_bytes=134_000_000,
        decode_tokens_per_s=19.0,
        prefill_tokens_per_s=110.0,
        floor_tokens_per_s=24.0,
        floor_fraction=0.79,
        predicted_tokens_per_s=20.5,
    ),
)
