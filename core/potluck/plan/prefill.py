"""Predict the time to first token of a prompt whose chunks follow each other through the stages.

Each chunk takes longer than the one before it, since its tokens read the caches of more. With P equal stages and n chunks the pipeline takes n + P - 1 steps instead of n·P. So it is
P·n / (n + P - 1) times as fast as with one chunk at a time. Stages and links are not equal in
general, so the prediction follows every chunk through every stage and over every link.
"""

from functools import cache

from potluck.model.caches import MAX_CHUNK_TOKENS
from potluck.plan.cost import TOKEN_MESSAGE_BYTES, ModelShape
from potluck.plan.stages import Plan

_TOKEN_ID_BYTES = 4
_CHUNKS = (MAX_CHUNK_TOKENS, 256, 128, 64)  # tokens
_CPU_CHUNK = 256  # most tokens on a CPU: its working data then fits the CPU's caches


def best_chunk(shape: ModelShape, plan: Plan, *, prompt_tokens: int, measured_tokens: int) -> int:
    """The chunk size with the least time to first token; of equal ones the larger.

    Small chunks keep all stages busy. Large ones read the weights less often.
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
    cached: int = 0,
) -> float:
    """Time from sending the first chunk to receiving the first token, at the driver.

    Args:
        shape: the sizes of the model.
        plan: its stages.
        prompt_tokens: the tokens of the prompt that are not cached yet.
        chunk_tokens: size of a chunk.
        measured_tokens: size of the chunk that `DeviceCost.prefill_ms` was measured with.
        cached: the tokens of the prompt that are.
    """
    stages = plan.pipeline

    @cache  # all chunks but the last have the same size
    def batch_ms(k: int, tokens: int) -> float:
        layers = stages[k].layers
        return shape.batch_ms(
            shape.layers[layers.start : layers.stop],
            stages[k].predicted_ms - stages[k].head_ms,
            stages[k].prefill_ms,
            tokens=tokens,
            measured_tokens=measured_tokens,
        )

    def compute_ms(k: int, start: int, tokens: int) -> float:
        longer_ms = shape.chunk_longer_ms(
            stages[k].chunk_read_ms, cached + start, tokens, measured_tokens=measured_tokens
        )
        return max(0.0, batch_ms(k, tokens) + longer_ms)

    free_at = [0.0] * (2 * len(stages))  # the link before each stage, and the stage
    arrival = 0.0
    for start in range(0, prompt_tokens, chunk_tokens):
        tokens = min(chunk_tokens, prompt_tokens - start)
        arrival = 0.0
        for k, hop in enumerate(plan.hops[: len(stages)]):
            size = shape.hidden_bytes if k else _TOKEN_ID_BYTES
            sent = max(arrival, free_at[2 * k]) + tokens * size * hop.ms_per_byte
            free_at[2 * k] = sent
            arrival = max(sent + hop.latency_ms, free_at[2 * k + 1]) + compute_ms(k, start, tokens)
            free_at[2 * k + 1] = arrival
    return arrival + stages[-1].head_ms + plan.hops[-1].ms(TOKEN_MESSAGE_BYTES)
