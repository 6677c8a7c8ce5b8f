"""`models`, and its `list`, `search`, `pull`, `add` and `rm`: the models that are here or can be had."""

import argparse
import getpass
import re
import sys
import time
from contextlib import closing
from pathlib import Path

from potluck.api.values.hub import Download, DownloadRequest, Fit, HubAnswer, HubModel
from potluck.cli import terminal
from potluck.cli.computers import open_client
from potluck.cli.terminal import duration, put, put_json, put_table, say
from potluck.client import Client, NodeGoneError
from potluck.errors import HubError, UsageError, format_bytes

MEASURE_S = 60.0  # for the speeds of the computers to be measured
POLL_S = 0.5
LEAST = 0.1  # billion parameters; smaller models are counted in millions
_EXACT = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # org/name
PULL_ENDS = "Ctrl-C pauses the download; the same command goes on with it."


def models(options: argparse.Namespace) -> int:
    """List the models on this computer."""
    client, _ = open_client(options)
    known = client.models()
    if options.json:
        put_json(known)
        return 0
    rows = [
        (
            f"{model.name}{' (loaded)' if model.current else ' (chosen)' if model.chosen else ''}",
            format_bytes(model.nbytes),
            model.problem or _fit(model.fit),
            model.path,
        )
        for model in known
    ]
    put_table(("NAME", "SIZE", "ON YOUR COMPUTERS", "FOLDER"), rows)
    return 0


def search(options: argparse.Namespace) -> int:
    """List models of the Hub; without words, those that Potluck recommends."""
    client, _ = open_client(options)
    words = " ".join(options.words).strip()
    if _EXACT.fullmatch(words):
        return _show(client.hub_model(words), as_json=options.json)
    answer = client.search_hub(words) if words else _recommended(client)
    if options.json:
        put_json(answer)
    else:
        _put_answer(answer)
    return 1 if answer.offline else 0


def _recommended(client: Client) -> HubAnswer:
    """What Potluck recommends, when it is known how fast the computers are, or after a minute."""
    answer, ends_at = client.recommended(), time.monotonic() + MEASURE_S
    if answer.measuring:
        say("Measuring how fast your computers are…")
    while answer.measuring and time.monotonic() < ends_at:
        time.sleep(POLL_S)
        answer = client.recommended()
    return answer


def _show(model: HubModel, *, as_json: bool) -> int:
    """Print the forms that one model of the Hub has."""
    if as_json:
        put_json(model)
        return 0
    facts = (_parameters(model), _license(model), model.page)
    put(f"{model.name}: {', '.join(filter(None, facts))}")
    if model.problem is not None:
        put(model.problem)
    rows = [
        (
            f"{variant.name}{' (best here)' if variant.name == model.best else ''}",
            format_bytes(variant.nbytes),
            f"Downloaded. {_fit(variant.fit)}" if variant.path is not None else _fit(variant.fit),
        )
        for variant in model.variants
    ]
    if rows:
        put_table(("VARIANT", "SIZE", "ON YOUR COMPUTERS"), rows)
        say(f"Download one: potluck models pull {model.name}:VARIANT")
    return 0


def _put_answer(answer: HubAnswer) -> None:
    if answer.message is not None:
        say(answer.message)
    if answer.models:
        rows = [
            (model.name, _parameters(model), _license(model), _size(model), _said(model))
            for model in answer.models
        ]
        put_table(("NAME", "PARAMETERS", "LICENCE", "SIZE", "ON YOUR COMPUTERS"), rows)
        say("Download one: potluck models pull NAME")


def _parameters(model: HubModel) -> str:
    if model.parameters is None:
        return ""
    billions = model.parameters / 1e9
    return f"{billions:.1f} billion" if billions >= LEAST else f"{1000 * billions:.0f} million"


def _license(model: HubModel) -> str:
    return f"{model.license or ''}{' (terms to accept)' if model.gated else ''}"


def _size(model: HubModel) -> str:
    best = next((variant for variant in model.variants if variant.name == model.best), None)
    return f"{format_bytes(best.nbytes)} ({best.name})" if best is not None else ""


def _said(model: HubModel) -> str:
    return model.problem or _fit(model.fit)


def _fit(fit: Fit | None) -> str:
    return fit.text if fit is not None else ""


def pull(options: argparse.Namespace) -> int:
    """Download a model, and wait until it is there."""
    name, _, variant = str(options.name).partition(":")
    if name.count("/") != 1:
        raise UsageError(f"{name} is no model of the Hub: its name is like Qwen/Qwen3-8B-GGUF.")
    client, _ = open_client(options)
    if options.token:
        client.set_hub_token(_token())
    say(f"Asking the Hugging Face Hub for {name}…")  # without the Internet this takes a while
    begun = client.download(DownloadRequest(model=name, variant=variant or None))
    try:
        ended = _follow(client, begun)
    except KeyboardInterrupt:
        client.change_download(begun.id, "pause")
        raise
    if options.json:
        put_json(ended)
    else:
        put(f"{ended.model} ({ended.variant}) is here: {ended.path}")
        say(f"Chat with it: potluck chat --model {ended.model}")
    return 0


def _token() -> str:
    """The user's token, asked for without showing it; else the first line of the input.

    It is no argument, because every user of the computer sees the arguments of a program.
    """
    if terminal.is_interactive():
        return getpass.getpass("Token of your account at huggingface.co: ").strip()
    return sys.stdin.readline().strip()


def _follow(client: Client, begun: Download) -> Download:
    """Show a download until it is done.

    Raises:
        HubError: it failed, or somebody cancelled it.
    """
    if begun.state == "done":
        return begun
    say(PULL_ENDS)
    with closing(terminal.Progress()) as progress, closing(client.states("request")) as states:
        for state in states:
            now = next((each for each in state.downloads if each.id == begun.id), None)
            match now.state if now is not None else "cancelled":
                case "cancelled" | "paused":
                    raise HubError("The download was paused or cancelled by another program.")
                case "failed":
                    assert now is not None
                    raise HubError(now.message or "The download failed.")
                case "done":
                    assert now is not None
                    return now
                case what:
                    assert now is not None
                    progress.show(_doing(what), now.done / max(now.total, 1), _left(now))
    raise NodeGoneError("The node ended during the download. The same command goes on with it.")


def _doing(state: str) -> str:
    return {"queued": "Waiting for another download", "offline": "Waiting for the Internet"}.get(
        state, "Downloading"
    )


def _left(download: Download) -> str:
    text = f"{format_bytes(download.done)} of {format_bytes(download.total)}"
    if download.bytes_per_s:
        text += f", {format_bytes(download.bytes_per_s)}/s"
    if download.eta_s is not None:
        text += f", {duration(download.eta_s)} left"
    return text


def add(options: argparse.Namespace) -> int:
    """Search a folder for models from now on."""
    client, _ = open_client(options)
    found = client.add_folder(str(Path(options.folder).expanduser().absolute()))
    if options.json:
        put_json(found)
    else:
        put(f"Found: {', '.join(found.models)}.")
    return 0


def rm(options: argparse.Namespace) -> int:
    """Delete a model that was downloaded."""
    client, _ = open_client(options)
    if not options.yes:
        terminal.must_be_interactive("Deleting a model", "Or add --yes.")
        if not terminal.ask(
            f"Delete {options.name}{_size_of(client, options.name)} from this computer?"
        ):
            put("Nothing is deleted.")
            return 0
    deleted = client.delete_model(options.name)
    if options.json:
        put_json(deleted)
    else:
        put(f"Deleted {deleted.name}: {format_bytes(deleted.nbytes)} are free now.")
    return 0


def _size_of(client: Client, name: str) -> str:
    """Return in words how much of the disk the model takes; nothing if there is none of this name."""
    known = next((each for each in client.models() if name in (each.name, each.path)), None)
    return f" ({format_bytes(known.nbytes)})" if known is not None else ""
