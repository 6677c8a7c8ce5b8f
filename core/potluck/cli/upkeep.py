"""`models verify`, `prune`, `limit` and `idle`: the weights on this disk and in memory, and how fast they travel."""

import argparse
from contextlib import closing
from pathlib import Path

from potluck.api.values.schema import RoleRequest
from potluck.api.values.weights import PruneRequest, Verified, VerifyRequest
from potluck.cli import terminal
from potluck.cli.computers import open_client
from potluck.cli.terminal import put, put_json, put_table, say
from potluck.client import Client, NodeGoneError
from potluck.errors import format_bytes

SHOWN = 3  # names of damaged tensors; the JSON has all


def verify(options: argparse.Namespace) -> int:
    """Check all weights. The exit status is 1 if a model is damaged."""
    client, _ = open_client(options)
    model: str | None = options.model
    if model is not None and Path(model).expanduser().exists():
        model = str(Path(model).expanduser().absolute())  # the node runs in another folder
    verified = _follow(client, VerifyRequest(model=model))
    if options.json:
        put_json(verified)
    else:
        _put_verified(verified)
    return 0 if verified.is_intact else 1


def _follow(client: Client, request: VerifyRequest) -> Verified:
    line = terminal.Progress()
    try:
        with closing(client.verify_models(request)) as events:
            for progress in events:
                if progress.result is not None:
                    return progress.result
                line.show(f"Checking {progress.message}", progress.fraction)
    finally:
        line.close()
    raise NodeGoneError("The node ended before it had checked everything. Try again.")


def _put_verified(verified: Verified) -> None:
    rows: list[tuple[str, str, str]] = []
    for model in verified.models:
        result = model.problem or "intact"
        if model.damaged:
            more = ", …" if len(model.damaged) > SHOWN else ""
            result = f"{len(model.damaged)} damaged: {', '.join(model.damaged[:SHOWN])}{more}"
        rows.append((model.name, format_bytes(model.nbytes), result))
    store = verified.store
    dropped = f"{len(store.dropped)} damaged and deleted" if store.dropped else "intact"
    rows.append(("stored weights", format_bytes(store.nbytes), dropped))
    put_table(("NAME", "SIZE", "RESULT"), rows)
    if any(model.damaged for model in verified.models):
        put("Download the damaged models again. If it happens often, test the disk and the memory.")
    if store.dropped:
        put("What was deleted is sent again when it is needed.")


def prune(options: argparse.Namespace) -> int:
    """Delete stored weights that nothing needs, and kept conversations. With `--json` alone, only say what."""
    client, _ = open_client(options)
    found = client.prune_models(PruneRequest(dry_run=True))
    files = found.tensors + found.sessions
    if files and not options.json and not options.yes:
        kept = f", and of {found.sessions} conversations" if found.sessions else ""
        say(
            f"Nothing needs {format_bytes(found.nbytes)} of stored weights ({found.tensors} files){kept}."
        )
        terminal.must_be_interactive("Deleting them", "Or add --yes.")
    if options.yes or (files and not options.json and terminal.ask("Delete them?")):
        found = client.prune_models(PruneRequest(dry_run=False))
    if options.json:
        put_json(found)
    elif not files:
        put("All stored weights are needed; nothing is deleted.")
    elif found.deleted:
        put(f"Deleted {format_bytes(found.nbytes)}.")
    else:
        put("Nothing is deleted.")
    return 0


def limit(options: argparse.Namespace) -> int:
    """Set or print how fast weights are sent, and models downloaded, at most."""
    client, _ = open_client(options)
    if options.mbit is not None or options.downloads is not None:
        request = RoleRequest(upload_limit_mbit=options.mbit, download_limit_mb=options.downloads)
        client.set_role(request)
    node = client.state().node
    mbit, mb = node.upload_limit_mbit, node.download_limit_mb
    if options.json:
        put_json({"upload_limit_mbit": mbit, "download_limit_mb": mb})
        return 0
    free = "as fast as it goes"
    put(f"Weights are sent {free if mbit is None else f'at {mbit} Mbit/s at most'}.")
    put(f"Models are downloaded {free if mb is None else f'at {mb} MB/s at most'}.")
    return 0


def idle(options: argparse.Namespace) -> int:
    """Set or print after how long a model that answers nobody is unloaded."""
    client, _ = open_client(options)
    if options.minutes is not None:
        client.set_role(RoleRequest(idle_unload_s=60 * options.minutes))
    idle_s = client.state().node.idle_unload_s
    if options.json:
        put_json({"idle_unload_s": idle_s})
    elif idle_s is None:
        put("A model stays loaded until it is unloaded.")
    else:
        put(f"A model that answered nobody for {idle_s / 60:g} minutes is unloaded.")
    return 0
