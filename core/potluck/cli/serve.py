"""`serve`: OpenAI's API for other programs.

This process holds the port, so that it answers whatever becomes of the node: programs are told how
far a load is, and answers under way wait for the node that is started in place of a lost one.
"""

import argparse
import os
from contextlib import closing, suppress

from potluck.api.http.listener import is_loopback_host
from potluck.api.v1.addressed import Fetch
from potluck.api.values.schema import ListenRequest, LoadProgress, PlanRequest, PlanView
from potluck.cli import terminal
from potluck.cli.computers import open_client
from potluck.cli.keeping import keep_going
from potluck.cli.keys import program_keys, server_certificate
from potluck.cli.plan import plan_request
from potluck.cli.terminal import put, say
from potluck.client import Client, NodeGoneError
from potluck.errors import PotluckError, UsageError
from potluck.front.server import FrontServer
from potluck.settings import Folders

KEY_VARIABLE = "POTLUCK_KEY"  # safer than an option: other programs can read the command line
KEY_LENGTH = 16


def serve(options: argparse.Namespace) -> int:
    """Answer other programs until Ctrl-C, or until Potluck is shut down on this computer."""
    asked = ListenRequest(
        host=options.host, port=options.port, key=_key(options), origins=tuple(options.origin)
    )
    folders = Folders.of(options.home)
    certificate = server_certificate(folders) if options.tls else None
    # A port that is taken is told at once.
    fetch = _fetch() if options.fetch_pictures else None
    with closing(
        FrontServer(asked, programs=program_keys(folders), certificate=certificate, fetch=fetch)
    ) as front:
        host = f"[{asked.host}]" if ":" in asked.host else asked.host
        url = f"{'http' if certificate is None else 'https'}://{host}:{front.port}/v1"
        if certificate is None and not is_loopback_host(asked.host):
            say("Who is on the network can read keys and prompts. --tls encrypts them.")
        say(f"{url} is open. Programs are answered as soon as the model is loaded.")
        client, _ = open_client(options)
        serving = _Serving(front, url, plan_request(options), client)
        try:
            with suppress(KeyboardInterrupt):
                keep_going(options, client, serving.serve)
        finally:
            front.busy("Potluck stops serving.")
            serving.end()
    say("Not serving any more.")
    return 0


class _Serving:
    """What `serve` has asked a node for, and has to undo."""

    def __init__(self, front: FrontServer, url: str, request: PlanRequest, client: Client) -> None:
        self._front = front
        self._url = url
        self._request = request
        self._client = client
        self._before = client.state().model
        self._loaded: PlanView | None = None

    def serve(self, client: Client, was_lost: bool) -> None:
        """Load the model and answer other programs as long as the node runs.

        After the node was lost, a model that cannot be loaded is told and ends nothing: the next
        prompt loads it.
        """
        self._client = client
        try:
            self._loaded = terminal.load(client, self._request, self._tell).plan
        except NodeGoneError:
            raise
        except PotluckError as error:
            if not was_lost:
                raise
            say(error.message)
        try:
            self._follow(client)
        finally:
            self._front.busy("The node of this computer was lost, and is started again.")

    def _tell(self, progress: LoadProgress) -> None:
        what = terminal.PHASES[progress.state]
        self._front.busy(
            f"The model is not loaded yet. {what}: {progress.fraction:.0%}.", progress.fraction
        )

    def _follow(self, client: Client) -> None:
        """Let the front ask this node, and say what happens, as long as the node runs."""
        told = 0
        has_said = False
        with closing(client.states("serve" if self._is_ours else "request")) as states:
            for state in states:
                if not has_said:
                    has_said = True
                    self._front.ready(client)
                    put(f"Serving at {self._url}")
                    say("Ctrl-C ends it.")
                for notice in state.notices:
                    if notice.id > told:
                        told = notice.id
                        say(notice.text)

    @property
    def _is_ours(self) -> bool:
        """Whether this command loaded the model, and so unloads it."""
        return self._loaded is not None and self._before.plan != self._loaded

    def end(self) -> None:
        """Unload the model unless it was loaded before."""
        if self._is_ours:
            with suppress(NodeGoneError):
                self._client.unload()


def _fetch() -> Fetch:
    from potluck.front.web_pictures import (
        WebPictures,  # a client of HTTP, which most have no use for
    )

    return WebPictures().fetch


def _key(options: argparse.Namespace) -> str | None:
    key = options.key or os.environ.get(KEY_VARIABLE) or None
    if key is not None and len(key) < KEY_LENGTH:
        raise UsageError(f"The key is too short: use {KEY_LENGTH} characters or more.")
    return key
