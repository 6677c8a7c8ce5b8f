"""`demo`: three nodes on this computer, which answer one prompt."""

import argparse

from potluck.cli import terminal
from potluck.cli.answering import Answering
from potluck.cli.chat import answer
from potluck.cli.plan import plan_request, put_plan
from potluck.cli.terminal import put, put_json, say
from potluck.errors import format_bytes

DEMO_PROMPT = "What is Potluck?"


def demo(options: argparse.Namespace) -> int:
    """Start three nodes on this computer, pair them, and let them answer one prompt."""
    from potluck.demo import Demo  # imports what only the demo needs

    prompt = " ".join(options.prompt).strip() or DEMO_PROMPT
    request = plan_request(options)
    with Demo(say) as running:
        if options.layers is None:
            request = running.share_out(request)
        loaded = terminal.load(running.client, request)
        assert loaded.plan is not None
        if not options.json:
            put_plan(loaded.plan)
            put(f"\n> {prompt}")
        alone = Answering(running.client, again=lambda lost: None, load=lambda client: None)
        told = answer(alone, options, prompt, loaded)
    if options.json:
        put_json(told)
        return 0
    for name, sent in told.streamed_bytes.items():
        put(f"Sent to {name}: {format_bytes(sent)} of weights.")
    put(
        f"Measured: first token after {told.time_to_first_token_s:.2f} s,"
        f" then {told.tokens_per_s:.1f} tokens/s"
        f" ({told.plan.predicted_tokens_per_s:.1f} predicted for three computers; here they share one)."
    )
    return 0
