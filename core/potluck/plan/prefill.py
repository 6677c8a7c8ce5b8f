"""How long a prompt takes to its first token, when its chunks follow each other through the stages.

With P equal stages and n chunks the pipeline takes n + P - 1 steps instead of n·P: it is
P·n / (n + P - 1) times as fast as chunk after chunk. Stages and links are not equal in general, so
the forecast follows every chunk through every stage and over every link.
"""

from potluck.plan.cost import TOKEN_MESSAGE_BYTES, ModelShape
from potluck.plan.placement import Plan

_TOKEN_ID_BYTES = 4


def time_to_first_token_ms(
    shape: ModelShape, plan: Plan, *, prompt_tokens: int, chunk_tokens: int
) -> float:
    """From the driver's first chunk to the first token back at it.

    `prompt_tokens` are those that no cache holds yet, `chunk_tokens` the length of the chunks that
    `Seat.prefill_ms` was measured with.
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
            # a short chunk costs its share, but never less than one token does
            decode_ms = stage.predicted_ms - stage.head_ms
            compute_ms = max(decode_ms, stage.prefill_ms * tokens / chunk_tokens)
            arrival = max(sent + hop.latency_ms, free_at[2 * k + 1]) + compute_ms
            free_at[2 * k + 1] = arrival
    return arrival + plan.stages[-1].head_ms + plan.hops[-1].ms(TOKEN_MESSAGE_BYTES)
