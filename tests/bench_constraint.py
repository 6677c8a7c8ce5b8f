"""How much longer a token takes in an answer that has to follow a grammar.

    potluck serve --model MODEL --port 8000
    python tests/bench_constraint.py 8000

Answers with and without a grammar take turns, and have the same number of tokens. The grammar allows nearly every
token (the largest mask), or is a JSON schema. Prints the median milliseconds of a token.
"""

import statistics
import sys
from typing import Any

import httpx

TOKENS, ROUNDS = 128, 8
SCHEMA = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"type": "string"}, "minItems": 200}},
    "required": ["items"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "without": {"ignore_eos": True},
    "any text": {"guided_regex": "(.|\n){4000,}"},
    "schema": {"guided_json": SCHEMA},
}


def token_ms(port: int, fields: dict[str, Any], seed: int) -> float | None:
    """Milliseconds of a token after the first; None: the answer was too short."""
    body = {"prompt": "Tell me a story.", "max_tokens": TOKENS, "seed": seed, **fields}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=600).json()
    if answer["usage"]["completion_tokens"] < TOKENS:
        return None
    return 1000 / answer["potluck"]["tokens_per_s"]


def main() -> None:
    port = int(sys.argv[1])
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in range(ROUNDS):
        for kind, fields in KINDS.items():
            if (ms := token_ms(port, fields, seed)) is not None:
                taken[kind].append(ms)
    base = statistics.median(taken["without"])
    for kind, values in taken.items():
        median = statistics.median(values)
        print(
            f"{kind:10} {median:7.3f} ms  {100 * (median / base - 1):+5.1f} %  {len(values)} answers"
        )


if __name__ == "__main__":
    main()
