"""`plan`, `chat`, `models`, `demo`: the models, and their answers."""

import argparse
import contextlib
import importlib
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from potluck.api.openai import ChatCompletionRequest, ChatMessage, Timings, Usage
from potluck.api.schema import (
    ClusterState,
    LoadProgress,
    PlanRequest,
    PlanView,
)
from potluck.cli import terminal
from potluck.cli.answering import Answering
from potluck.cli.computers import open_client, put_spares
from potluck.cli.keeping import Restarts
from potluck.cli.terminal import Terminated, put, put_json, put_table, say
from potluck.client import Client, NodeGoneError
from potluck.errors import PotluckError, UsageError, format_bytes
from potluck.model.schemes import Scheme

DEMO_PROMPT = "What is Potluck?"
GREETING = "Ask away. Ctrl-C stops an answer; Ctrl-D, or /quit, ends; /new begins afresh."


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage in the output of `plan --json`."""

    node: str
    device: str
    layers: tuple[int, int]
    embedding: bool
    head: bool
    predicted_ms: float


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in the output of `plan --json`."""

    model_id: str
    scheme: Scheme
    stages: tuple[PlannedStage, ...]
    predicted_tokens_per_s: float
    alone: dict[str, float | None]
    explanation: str


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and how long it took."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    time_to_first_token_s: float
    tokens_per_s: float


class Told(Spoken, frozen=True, kw_only=True):
    """An answer in the output of `chat --json`."""

    plan: Planned
    streamed_bytes: dict[str, int]  # by the name of the computer that received the weights


# --- plan


def plan(options: argparse.Namespace) -> int:
    """Print which computer would compute which layers."""
    client, _ = open_client(options)
    made = client.plan(plan_request(options))
    if options.json:
        put_json(_planned(made))
    else:
        put_plan(made)
        put_spares(client.state().computers)
    return 0


def plan_request(options: argparse.Namespace, *, shape: str | None = None) -> PlanRequest:
    """Return the request that the options describe.

    A path is made absolute, since the node runs in another folder.
    """
    model: str | None = options.model
    if model is not None and Path(model).expanduser().exists():
        model = str(Path(model).expanduser().absolute())
    return PlanRequest(
        model=model,
        shape=shape,
        scheme=options.scheme,
        cache=options.cache,
        layers=options.layers,
        workers=options.workers,
        context=options.context,
        users=options.users,
    )


def _planned(view: PlanView) -> Planned:
    return msgspec.convert(view, Planned, from_attributes=True)


def put_plan(view: PlanView) -> None:
    """Print the plan for people."""
    put(f"{view.model} in {view.scheme}, {view.context} tokens of context")
    rows: list[tuple[str, ...]] = []
    for stage in view.stages:
        start, stop = stage.layers
        parts = ["embedding"] if stage.embedding else []
        parts += [f"layers {start} to {stop - 1}"] if stop > start else []
        parts += ["head"] if stage.head else []
        rows.append((stage.node, stage.device, ", ".join(parts), f"{stage.predicted_ms:.2f} ms"))
    put_table(("COMPUTER", "DEVICE", "COMPUTES", "A TOKEN TAKES"), rows)
    put(f"Together: {view.predicted_tokens_per_s:.1f} tokens/s predicted for one user.")
    if view.users > 1 and view.users_tokens_per_s is not None:
        put(f"For {view.users} at once: {view.users_tokens_per_s:.1f} tokens/s together.")
    for name, rate in view.alone.items():
        put(f"{name} alone: {'does not fit' if rate is None else f'{rate:.1f} tokens/s'}.")
    put(view.explanation)


# --- chat


def chat(options: argparse.Namespace) -> int:
    """Answer one prompt from the arguments or a pipe. Without a prompt, hold a conversation."""
    prompt = _prompt(options)
    client, _ = open_client(options)
    loaded = terminal.load(client, plan_request(options))
    answering = Answering(
        client,
        again=Restarts(options).after,
        load=lambda client: _load(client, options),
    )
    if prompt is None:
        # A person may think for ten minutes; the model stays loaded.
        with client.hold("request"):
            return _talk(answering, options)
    told = answer(answering, options, prompt, loaded)
    if options.json:
        put_json(told)
    return 0


def _prompt(options: argparse.Namespace) -> str | None:
    prompt = " ".join(options.prompt).strip()
    if not prompt and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise UsageError("There is no prompt: neither after `chat` nor on standard input.")
    if not prompt and options.json:
        raise UsageError("--json needs a prompt: potluck chat --json PROMPT")
    return prompt or None


def _load(client: Client, options: argparse.Namespace) -> None:
    terminal.load(client, plan_request(options))


def answer(
    answering: Answering, options: argparse.Namespace, prompt: str, loaded: LoadProgress
) -> Told:
    """Answer one prompt. Unless the output is JSON, print the answer to stdout while it arrives."""
    assert loaded.plan is not None  # the progress `ready` always has it
    spoken = _speak(answering, options, [_user(prompt)], quiet=options.json)
    return Told(
        **msgspec.structs.asdict(spoken),
        plan=_planned(loaded.plan),
        streamed_bytes=_streamed(loaded, loaded.plan, answering.client.state()),
    )


def _speak(
    answering: Answering, options: argparse.Namespace, messages: list[ChatMessage], *, quiet: bool
) -> Spoken:
    request = ChatCompletionRequest(
        messages=messages,
        temperature=options.temperature,
        top_p=options.top_p,
        max_completion_tokens=options.max_tokens,
        seed=options.seed,
    )
    text: list[str] = []
    last = None
    try:
        with closing(answering.chat(request)) as chunks:
            for last in chunks:
                for choice in last.choices:
                    if isinstance(choice.delta.content, str):
                        text.append(choice.delta.content)
                        if not quiet:
                            put(choice.delta.content, end="")
    finally:
        if not quiet and text and not "".join(text[-1:]).endswith("\n"):
            put("")
    if last is None or not isinstance(last.usage, Usage) or not isinstance(last.potluck, Timings):
        raise NodeGoneError("The answer ended without its figures. Is the node of another version?")
    spoken = Spoken(
        text="".join(text),
        prompt_tokens=last.usage.prompt_tokens,
        completion_tokens=last.usage.completion_tokens,
        time_to_first_token_s=last.potluck.time_to_first_token_s,
        tokens_per_s=last.potluck.tokens_per_s,
    )
    if not quiet:
        say(
            f"[{spoken.completion_tokens} tokens, {spoken.tokens_per_s:.1f} a second,"
            f" the first after {spoken.time_to_first_token_s:.2f} s]"
        )
    return spoken


def _talk(answering: Answering, options: argparse.Namespace) -> int:
    with contextlib.suppress(ImportError):
        # With it, `input` can edit its line; Windows can do so by itself.
        importlib.import_module("readline")
    say(GREETING)
    messages: list[ChatMessage] = []
    while True:
        try:
            line = input("\n> ").strip()
        except (EOFError, KeyboardInterrupt):
            say()
            return 0
        match line:
            case "":
                continue
            case "/quit" | "/exit":
                return 0
            case "/new":
                messages = []
                continue
            case _:
                messages = [*messages, _user(line)]
        try:
            spoken = _speak(answering, options, messages, quiet=False)
        except Terminated:
            raise
        except KeyboardInterrupt:
            say("\nStopped.")
            messages = messages[:-1]
        except PotluckError as error:
            say(error.message)
            messages = messages[:-1]
            # Do not wait for workers: those of the first request may be gone.
            request = msgspec.structs.replace(plan_request(options), workers=0)
            terminal.load(answering.client, request)
        else:
            messages = [*messages, ChatMessage(role="assistant", content=spoken.text)]


def _user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


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


# --- demo


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
