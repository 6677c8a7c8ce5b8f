"""`chat`: one answer to a prompt from the arguments and a pipe, or a conversation."""

import argparse
import base64
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from potluck.api.v1.request_shapes import ChatMessage, ContentPart, ImageUrl
from potluck.api.values.schema import ClusterState, LoadProgress, PlanView
from potluck.cli import terminal
from potluck.cli.answering import Answering
from potluck.cli.computers import open_client
from potluck.cli.keeping import Restarts
from potluck.cli.plan import Planned, plan_request, planned
from potluck.cli.speaking import Spoken, say_figures, showing, speak
from potluck.cli.terminal import put_json
from potluck.client import Client
from potluck.errors import UsageError, format_bytes
from potluck.reasons import reason

_MOST_BYTES = 11 << 20  # of a picture; a request has at most 16 MiB, and base64 takes a third more


class Told(Spoken, frozen=True, kw_only=True):
    """An answer in the output of `chat --json`."""

    plan: Planned
    streamed_bytes: dict[str, int]  # by the name of the computer that received the weights


def chat(options: argparse.Namespace) -> int:
    """Answer one prompt from the arguments or a pipe. Without a prompt, hold a conversation."""
    prompt = _prompt(options)
    if options.image and prompt is None:
        raise UsageError("--image needs a prompt: potluck chat --image FILE PROMPT")
    pictures = [_picture(Path(file)) for file in options.image]
    client, _ = open_client(options)
    loaded = terminal.load(client, plan_request(options))
    answering = Answering(
        client,
        again=Restarts(options).after,
        load=lambda client: _load(client, options),
    )
    if prompt is None:
        from potluck.cli.talk import Talk  # imports what only a conversation needs

        # A person may think for ten minutes; the model stays loaded.
        with client.hold("request"):
            return Talk(answering, options).run()
    told = answer(answering, options, prompt, loaded, pictures)
    if options.json:
        put_json(told)
    return 0


def _prompt(options: argparse.Namespace) -> str | None:
    """Return the prompt: that of the arguments, then what came through a pipe."""
    parts = [" ".join(options.prompt).strip()]
    if not sys.stdin.isatty():
        parts.append(sys.stdin.read().strip())
        if not any(parts):
            raise UsageError("There is no prompt: neither after `chat` nor on standard input.")
    prompt = "\n\n".join(filter(None, parts))
    if not prompt and options.json:
        raise UsageError("--json needs a prompt: potluck chat --json PROMPT")
    return prompt or None


def _load(client: Client, options: argparse.Namespace) -> None:
    terminal.load(client, plan_request(options))


def _picture(file: Path) -> ContentPart:
    """A picture of this computer, as a part of a message.

    Raises:
        UsageError: the file cannot be read, or is too large.
    """
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{file} has more than {format_bytes(_MOST_BYTES)}. Make it smaller.")
        data = base64.b64encode(file.read_bytes()).decode()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {reason(error)}.") from error
    return ContentPart(type="image_url", image_url=ImageUrl(url=f"data:image;base64,{data}"))


def answer(
    answering: Answering,
    options: argparse.Namespace,
    prompt: str,
    loaded: LoadProgress,
    pictures: Sequence[ContentPart] = (),
) -> Told:
    """Answer one prompt, with these pictures before it.

    Unless the output is JSON, print the answer to stdout while it arrives.
    """
    assert loaded.plan is not None  # the progress `ready` always has it
    text = ContentPart(type="text", text=prompt)
    content = [*pictures, text] if pictures else prompt
    messages = [ChatMessage(role="user", content=content)]
    if options.json:
        spoken = speak(answering, options, messages, lambda text: None)
    else:
        with showing() as show:
            spoken = speak(answering, options, messages, show)
        say_figures(spoken)
    return Told(
        **msgspec.structs.asdict(spoken),
        plan=planned(loaded.plan),
        streamed_bytes=_streamed(loaded, loaded.plan, answering.client.state()),
    )


def _streamed(loaded: LoadProgress, plan: PlanView, state: ClusterState) -> dict[str, int]:
    """Return the bytes of weights sent to each computer of the plan, by name.

    This computer is left out: it reads the weights from its own disk.
    """
    me = state.node.node_id
    sent = {stage.node: 0 for stage in plan.stages if stage.node_id != me}
    for transfer in loaded.nodes:
        if transfer.node_id != me:
            sent[transfer.name] = sent.get(transfer.name, 0) + transfer.sent
    return sent
