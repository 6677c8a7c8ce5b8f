"""How long a prompt takes to its first token, when its chunks follow each other through the stages.

With P equal stages and n chunks the pipeline takes n + P - 1 steps instead of n·P: it is
P·n / (n + P - 1) times as fast as chunk after chunk. Stages and links are not equal in general, so
the forecast follows every chunk through every stage and over every link.
"""

from potluck.model.caches import MAX_CHUNK_TOKENS
from potluck.plan.cost import TOKEN_MESSAGE_BYTES, ModelShape
from potluck.plan.placement import Plan

_TOKEN_ID_BYTES = 4
_CHUNKS = (MAX_CHUNK_TOKENS, 256, 128, 64)  # tokens
_CPU_CHUNK = 256  # at most: what is computed on then fits the caches of a processor


def best_chunk(shape: ModelShape, plan: Plan, *, prompt_tokens: int, measured_tokens: int) -> int:
    """The chunk that a prompt is through fastest with; the larger one of equals.

    Small chunks keep all stages busy, and large ones read the weights less often.
    """
    on_cpu = any(stage.device.startswith("cpu") for stage in plan.stages)
    return min(
        (chunk for chunk in _CHUNKS if not on_cpu or chunk <= _CPU_CHUNK),
        key=lambda chunk: time_to_first_token_ms(
            shape,
            plan,
            prompt_tokens=prompt_tokens,
            chunk_tokens=chunk,
            measured_tokens=measured_tokens,
        ),
    )


def time_to_first_token_ms(
    shape: ModelShape,
    plan: Plan,
    *,
    prompt_tokens: int,
    chunk_tokens: int,
    measured_tokens: int,
) -> float:
    """From the driver's first chunk to the first token back at it.

    Args:
        shape: the model.
        plan: its stages.
        prompt_tokens: those that no cache holds yet.
        chunk_tokens: that are sent at once.
        measured_tokens: of the chunk that `DeviceCost.prefill_ms` was measured with.
    """
    free_at = [0.0] * (2 * len(plan.stages))  # every stage, and the link before it
    arrival = 0.0
    for start in range(0, prompt_tokens, chunk_tokens):
        tokens = min(chunk_tokens, prompt_tokens - start)
        arrival = 0.0
        for k, (hop, stage) in enumerate(zip(plan.hops, plan.stages, strict=False)):
            size = shape.hidden_bytes if k else _TOKEN_ID_BYTES
            sent = max(arrival, free_at[2 * k]) + tokens * size * hop.ms_per_byte
            free_at[2 * k] = sent
            # what is read costs what it costs one token, each further one its share of a chunk
            token_ms = stage.predicted_ms - stage.head_ms
            more_ms = max(0.0, stage.prefill_ms - token_ms * shape.reading(measured_tokens))
            further_ms = (tokens - 1) * more_ms / max(1, measured_tokens - 1)
            compute_ms = token_ms * shape.reading(tokens) + further_ms
            arrival = max(sent + hop.latency_ms, free_at[2 * k + 1]) + compute_ms
            free_at[2 * k + 1] = arrival
    return arrival + plan.stages[-1].head_ms + plan.hops[-1].ms(TOKEN_MESSAGE_BYTES)
