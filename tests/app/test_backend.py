"""The window's client, over real HTTP to the node's real server with a scripted node behind it."""

import errno
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_backend import TOKEN, Server
from pytestqt.qtbot import QtBot

from potluck.api.values import schema
from potluck.api.values.doctor import Diagnosis
from potluck.api.values.pairing import Pairing
from potluck.api.values.schema import PlanRequest
from potluck.doctor.sentences import say
from potluck.errors import NotEnoughMemoryError, PeerLostError
from potluck_app.backend import Backend
from potluck_app.chats.values import Message, Settings
from potluck_app.http import Endpoint, Problem
from potluck_app.streams import Reply, ReplyEnd
from potluck_app.viewmodels.doctor import Doctor

pytestmark = [pytest.mark.qt, pytest.mark.net]

HELLO = [Message(role="user", text="Hello?")]


def endpoint_of(server: Server) -> Endpoint:
    return Endpoint(port=server.port, token=TOKEN)


@contextmanager
def connected(find: Callable[[], Endpoint], qtbot: QtBot) -> Iterator[Backend]:
    backend = Backend(find)
    try:
        with qtbot.waitSignal(backend.state_changed):
            backend.start()
        yield backend
    finally:
        backend.close()


@pytest.fixture
def backend(server: Server, qtbot: QtBot) -> Iterator[Backend]:
    with connected(lambda: endpoint_of(server), qtbot) as backend:
        yield backend


class Heard:
    """What a reply said."""

    def __init__(self, reply: Reply) -> None:
        self.pieces: list[str] = []
        self.ends: list[ReplyEnd] = []
        reply.text.connect(self.pieces.append)
        reply.finished.connect(self.ends.append)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def whole(backend: Backend, qtbot: QtBot) -> Heard:
    reply = backend.chat(HELLO)
    heard = Heard(reply)
    qtbot.waitUntil(lambda: bool(heard.ends))
    return heard


def test_the_doctor_is_asked_over_the_local_api(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    server.backend.diagnosis = Diagnosis(findings=(say("network_none"),))
    doctor = Doctor(backend)

    doctor.examine()
    qtbot.waitUntil(lambda: not doctor.is_looking)

    assert [row.text for row in doctor.rows] == ["This computer is in no network."]


def test_the_first_state_comes_at_once_and_every_change_follows(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    assert backend.connection == "connected"
    assert backend.state is not None
    assert backend.state.node.name == "here"

    with qtbot.waitSignal(backend.state_changed) as changed:
        server.update(model=schema.ModelState(name="big", state="loading"))

    assert changed.args is not None
    assert changed.args[0].model.name == "big"
    assert server.backend.held[0] == "window"


def test_the_streamed_text_is_the_text_and_comes_with_its_figures(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    server.backend.script = ("Hé", "llo 👩‍👧 ", "wörld")

    heard = whole(backend, qtbot)

    assert heard.text == "Héllo 👩‍👧 wörld"
    (end,) = heard.ends
    assert end.stats is not None
    assert (end.stats.tokens, end.stats.prompt_tokens) == (3, 3)
    assert (end.stats.tokens_per_s, end.stats.time_to_first_token_s) == (50.0, 0.25)


def test_the_options_of_a_chat_reach_the_node(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    heard = Heard(backend.chat(HELLO, Settings(top_k=40, seed=7)))
    qtbot.waitUntil(lambda: bool(heard.ends))

    (asked,) = server.backend.generated
    assert (asked.sampling.top_k, asked.sampling.seed) == (40, 7)


def test_five_thousand_tokens_arrive_whole_in_few_signals(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    server.backend.script = tuple(f"{number} " for number in range(5000))

    heard = whole(backend, qtbot)

    assert heard.text.split() == [str(number) for number in range(5000)]
    assert len(heard.pieces) < 1000  # 30 a second, however fast they come


def test_stop_reaches_the_node(backend: Backend, server: Server, qtbot: QtBot) -> None:
    server.backend.endless = True
    reply = backend.chat(HELLO)
    heard = Heard(reply)
    qtbot.waitUntil(lambda: heard.text == "Hello, world.")

    reply.stop()

    (end,) = heard.ends
    assert end.stopped
    assert end.stats is not None
    assert (end.stats.tokens, end.stats.prompt_tokens) == (4, 3)  # counted by the window
    assert server.backend.cancelled.wait(10)


def test_an_error_before_the_first_token_is_a_sentence(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    server.backend.fails_before = NotEnoughMemoryError(10**10, 10**9)

    heard = whole(backend, qtbot)

    assert heard.text == ""
    assert heard.ends[0].error is not None
    assert "9 GB are missing" in heard.ends[0].error


def test_an_error_in_the_middle_keeps_what_came(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    server.backend.fails_after = PeerLostError("Laptop stopped answering.")

    heard = whole(backend, qtbot)

    assert heard.text == "Hello"
    assert [(end.error, end.code) for end in heard.ends] == [
        ("Laptop stopped answering.", "peer_lost")
    ]


def test_a_pairing_goes_from_asking_to_the_digits_to_yes(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    answers: list[Pairing] = []

    backend.ask_pairing("here").then(answers.append)
    qtbot.waitUntil(lambda: backend.state is not None and bool(backend.state.pairings))
    qtbot.waitUntil(
        lambda: backend.state is not None and backend.state.pairings[0].code is not None
    )
    backend.decide_pairing("p1", True).then(answers.append)
    qtbot.waitUntil(lambda: len(answers) == 2)

    assert [answer.state for answer in answers] == ["asking", "paired"]


def test_a_refused_command_is_the_nodes_own_sentence(backend: Backend, qtbot: QtBot) -> None:
    problems: list[Problem] = []

    backend.ask_pairing("nobody").then(failed=problems.append)
    qtbot.waitUntil(lambda: bool(problems))

    assert problems[0].message == "There is no computer “nobody” here."
    assert not problems[0].unreachable


def test_every_command_reaches_the_node(backend: Backend, server: Server, qtbot: QtBot) -> None:
    done: list[object] = []

    for call in (
        backend.invite(),
        backend.remove_computer("2" * 64),
        backend.set_role(worker=True, memory=5 * 10**9),
        backend.models(),
        backend.unload_model(),
        backend.shut_down(),
    ):
        call.then(done.append, lambda problem: done.append(problem))
    qtbot.waitUntil(lambda: len(done) == 6)

    assert not [problem for problem in done if isinstance(problem, Problem)]
    node = server.backend
    assert node.forgotten == ["2" * 64]
    assert node.roles == [schema.RoleRequest(worker=True, memory=5 * 10**9)]
    assert node.stopped.is_set()
    assert ("guide", "big") in [tuple(m.name for m in x) for x in done if isinstance(x, tuple)]


def test_a_listener_opens_and_closes(backend: Backend, server: Server, qtbot: QtBot) -> None:
    opened: list[schema.Listener] = []

    backend.open_listener(0).then(opened.append)
    qtbot.waitUntil(lambda: bool(opened))
    qtbot.waitUntil(lambda: backend.state is not None and backend.state.listeners == tuple(opened))
    backend.close_listener(opened[0].port)

    qtbot.waitUntil(lambda: backend.state is not None and backend.state.listeners == ())


def test_a_load_reports_its_progress_to_the_end(
    backend: Backend, server: Server, qtbot: QtBot
) -> None:
    seen: list[schema.LoadProgress] = []
    load = backend.load_model("/models/big")
    load.progress.connect(seen.append)

    qtbot.waitUntil(lambda: bool(seen) and seen[-1].state == "ready")

    assert [p.state for p in seen] == ["planning", "streaming", "streaming", "ready"]
    assert server.backend.planned[0].model == "/models/big"


def test_a_load_that_fails_says_why(backend: Backend, server: Server, qtbot: QtBot) -> None:
    server.backend.load_error = NotEnoughMemoryError(10**10, 10**9)
    load = backend.load_model(None)

    with qtbot.waitSignal(load.failed) as failed:
        pass

    assert failed.args is not None
    assert failed.args[0].code == "not_enough_memory"


def test_what_is_asked_before_the_node_is_there_waits_for_it(server: Server, qtbot: QtBot) -> None:
    backend = Backend(lambda: endpoint_of(server))
    heard = Heard(backend.chat(HELLO))
    stopped = backend.chat(HELLO)
    stopped.stop()

    backend.start()
    qtbot.waitUntil(lambda: bool(heard.ends))
    backend.close()

    assert heard.text == "Hello, world."
    assert len(server.backend.generated) == 1


def test_a_node_that_cannot_be_started_is_a_sentence_and_tried_again(
    server: Server, qtbot: QtBot
) -> None:
    tries: list[None] = []

    def find() -> Endpoint:
        tries.append(None)
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return endpoint_of(server)

    backend = Backend(find)
    with qtbot.waitSignal(backend.connection_changed) as changed:
        backend.start()
    assert changed.args == [
        "failed",
        "Potluck cannot start in the background: the disk is full.",
    ]
    qtbot.waitUntil(lambda: backend.connection == "connected")
    backend.close()

    assert len(tries) == 3


def test_a_worker_holds_the_node_as_one(backend: Backend, server: Server, qtbot: QtBot) -> None:
    backend.set_holder("worker")

    qtbot.waitUntil(lambda: "worker" in server.backend.held)
    assert server.backend.released.wait(10)  # the window's own hold


def test_a_node_that_takes_the_place_of_another_is_asked_to_load_what_that_one_had(
    server: Server, qtbot: QtBot
) -> None:
    first = Server()
    found = [first]
    backend = Backend(lambda: endpoint_of(found[0]))
    with qtbot.waitSignal(backend.state_changed):
        backend.start()
    first.update(model=schema.ModelState(name="big", model_id="cd" * 32, state="ready"))
    qtbot.waitUntil(lambda: backend.state is not None and backend.state.model.state == "ready")
    problems: list[Problem] = []

    found[0] = server
    with qtbot.waitSignal(backend.connection_changed):
        first.close()
    backend.invite().then(failed=problems.append)
    heard = Heard(backend.chat(HELLO))

    qtbot.waitUntil(lambda: bool(heard.ends))
    backend.close()
    assert server.backend.planned[0] == PlanRequest()  # the node knows which model was chosen
    assert heard.text == "Hello, world."
    assert [problem.unreachable for problem in problems] == [True]


NODE = """
import sys, time
sys.path[:0] = sys.argv[1:]
from fake_backend import Server
server = Server()
server.backend.endless = True
print(server.port, flush=True)
time.sleep(600)
"""


class NodeProcess:
    """A node in a process of its own, which can be killed as the system kills one."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        folders = [str(root / "core"), str(root / "tests" / "support")]
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, *folders], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.endpoint = Endpoint(port=int(self.process.stdout.readline()), token=TOKEN)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.slow
def test_a_killed_node_is_noticed_and_started_again_and_the_reply_goes_on(qtbot: QtBot) -> None:
    nodes: list[NodeProcess] = []

    def start() -> Endpoint:
        nodes.append(NodeProcess())
        return nodes[-1].endpoint

    seen: list[str] = []
    try:
        with connected(start, qtbot) as backend:
            backend.connection_changed.connect(lambda connection, _why: seen.append(connection))
            heard = Heard(backend.chat(HELLO))
            qtbot.waitUntil(lambda: heard.text == "Hello, world.")

            nodes[0].kill()
            qtbot.waitUntil(lambda: seen == ["restarting", "connected"], timeout=20_000)

            qtbot.waitUntil(lambda: heard.text == 2 * "Hello, world.")  # all that it ever says
            assert heard.ends == []
    finally:
        for node in nodes:
            node.kill()
    assert len(nodes) == 2
