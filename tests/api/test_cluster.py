"""`/cluster` and `/health` over a real socket."""

import json
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from fake_backend import PLAN, Server, computer
from fake_bench import BENCH

from potluck.api.values import benching, schema
from potluck.api.values.doctor import Diagnosis
from potluck.doctor.sentences import say
from potluck.errors import NotEnoughMemoryError, NotFoundError, PairingError, PotluckError

pytestmark = pytest.mark.net


def states(lines: Iterator[str]) -> Iterator[schema.ClusterState]:
    for line in lines:
        if line.startswith("data: "):
            yield msgspec.json.decode(line[6:], type=schema.ClusterState)


def test_health_says_which_process_it_is(http: httpx.Client) -> None:
    health = msgspec.json.decode(http.get("/health").content, type=schema.Health)

    assert health.version == "0.0.test"


def test_state_is_the_whole_snapshot(server: Server, http: httpx.Client) -> None:
    server.update(computers=(computer("there", "2", layers=(0, 4), state="running"),))

    state = msgspec.json.decode(http.get("/cluster").content, type=schema.ClusterState)

    assert state == server.backend.current


def test_events_begin_with_the_state_and_follow_changes(server: Server, http: httpx.Client) -> None:
    with http.stream("GET", "/cluster/events") as response:
        seen = states(response.iter_lines())
        first = next(seen)
        server.update(notices=(schema.Notice(id=1, level="info", text="hello"),))
        second = next(seen)

    assert first.notices == ()
    assert [notice.text for notice in second.notices] == ["hello"]


def test_the_doctor_answers_with_what_it_found(server: Server, http: httpx.Client) -> None:
    server.backend.diagnosis = Diagnosis(findings=(say("network_none"),))

    answer = http.post("/cluster/doctor")

    assert msgspec.json.decode(answer.content, type=Diagnosis) == server.backend.diagnosis


def test_computers_are_looked_for_once_more(server: Server, http: httpx.Client) -> None:
    assert http.post("/cluster/search").is_success
    assert server.backend.searches == 1


def test_a_burst_of_changes_is_one_event(server: Server, http: httpx.Client) -> None:
    with http.stream("GET", "/cluster/events") as response:
        seen = states(response.iter_lines())
        next(seen)
        for number in range(50):
            server.update(notices=(schema.Notice(id=number, level="info", text="x"),))
        ids = [next(seen).notices[0].id]
        while ids[-1] != 49:
            ids.append(next(seen).notices[0].id)

    assert len(ids) < 20  # not one for each of the fifty


def test_an_event_stream_holds_the_node_until_it_is_closed(
    server: Server, http: httpx.Client
) -> None:
    with http.stream("GET", "/cluster/events?holder=window") as response:
        seen = states(response.iter_lines())
        next(seen)
        assert "window" in server.backend.held
        assert not server.backend.released.is_set()

    assert server.backend.released.wait(30)


def test_an_unknown_holder_is_refused(http: httpx.Client) -> None:
    response = http.get("/cluster/events?holder=cat")

    assert response.status_code == 400
    assert response.json()["error"]["data"] == {"param": "holder"}


def test_pairing_by_sight(server: Server, http: httpx.Client) -> None:
    server.update(computers=(computer("there", "2", paired=False),))

    asked = http.post("/cluster/pairings", json={"target": "there"}).json()
    shown = http.get("/cluster").json()["pairings"][0]
    done = http.post(f"/cluster/pairings/{asked['id']}", json={"accept": True}).json()

    assert asked["state"] == "asking"
    assert shown["code"] == "123456"
    assert done["state"] == "paired"


def test_simple_requests_reach_the_backend(server: Server, http: httpx.Client) -> None:
    invite = http.post("/cluster/invites").json()
    joined = http.post("/cluster/join", json={"token": "T"}).json()
    http.post("/cluster/connect", json={"address": "10.0.0.2:99"}).raise_for_status()
    http.post("/cluster/role", json={"worker": True, "memory": 5}).raise_for_status()
    http.delete(f"/cluster/computers/{'2' * 64}").raise_for_status()
    http.post("/cluster/shutdown").raise_for_status()

    assert invite == {"token": "POT-LUCK", "expires_s": 600.0}
    assert joined == {"home_id": "c" * 64, "name": "main"}
    assert server.backend.joined == ["T"]
    assert server.backend.connected == ["10.0.0.2:99"]
    assert server.backend.roles == [schema.RoleRequest(worker=True, memory=5)]
    assert server.backend.forgotten == ["2" * 64]
    assert server.backend.stopped.is_set()
    assert server.backend.held.count("request") == 5  # to ask it to end does not keep it alive


def test_plan_is_answered_with_the_view(server: Server, http: httpx.Client) -> None:
    response = http.post(
        "/cluster/plan",
        json={"model": "/m", "scheme": "f32", "layers": [["here", 2], ["there", 4]], "workers": 1},
    )

    assert msgspec.json.decode(response.content, type=schema.PlanView) == PLAN
    assert server.backend.planned == [
        schema.PlanRequest(model="/m", scheme="f32", layers=(("here", 2), ("there", 4)), workers=1)
    ]


def test_loading_streams_its_progress(server: Server, http: httpx.Client) -> None:
    response = http.post("/cluster/model", json={})

    seen = [json.loads(line[6:]) for line in response.text.splitlines() if line[:5] == "data:"]
    assert [progress["state"] for progress in seen] == [
        "planning",
        "streaming",
        "streaming",
        "ready",
    ]
    assert seen[2]["nodes"][0]["sent"] == 1000
    assert seen[-1]["plan"]["explanation"] == PLAN.explanation
    assert server.backend.current.model.state == "ready"
    http.delete("/cluster/model").raise_for_status()
    assert server.backend.current.model.state == "none"


def test_a_load_that_fails_ends_with_the_error(server: Server, http: httpx.Client) -> None:
    server.backend.load_error = NotEnoughMemoryError(12_000_000_000, 8_000_000_000)

    response = http.post("/cluster/model", json={})

    last = json.loads(response.text.strip().splitlines()[-1][6:])
    assert last["state"] == "failed"
    assert last["error"]["code"] == "not_enough_memory"
    assert "4 GB are missing" in last["message"]


def test_models_are_listed(http: httpx.Client) -> None:
    models = http.get("/cluster/models").json()

    assert (models[0]["name"], models[0]["nbytes"], models[0]["current"]) == (
        "guide",
        8_000_000,
        True,
    )
    assert models[1]["fit"]["speed"] == {"low": 11.0, "high": 11.0}


def test_a_listener_is_opened_and_closed(http: httpx.Client) -> None:
    listener = http.post("/cluster/listeners", json={"port": 0}).json()
    url = f"http://127.0.0.1:{listener['port']}"
    served = httpx.get(f"{url}/v1/models", trust_env=False)
    hidden = httpx.get(f"{url}/cluster", trust_env=False)
    closed = http.delete(f"/cluster/listeners/{listener['port']}")

    assert served.json()["data"][0]["id"] == "guide"
    assert hidden.status_code == 404
    assert closed.status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/v1/models", trust_env=False)
    assert http.delete(f"/cluster/listeners/{listener['port']}").status_code == 404


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFoundError("No such computer."), 404),
        (NotEnoughMemoryError(2, 1), 409),
        (PairingError("Refused."), 409),
    ],
)
def test_errors_have_a_status_and_a_sentence(
    server: Server, http: httpx.Client, error: PotluckError, status: int
) -> None:
    server.backend.plan_error = error

    response = http.post("/cluster/plan", json={})

    assert response.status_code == status
    assert response.json()["error"]["message"] == str(error)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("plan", {"scheme": "int3"}, "scheme"),
        ("plan", {"layers": [["a", -1]]}, "layers[0][1]"),
        ("plan", {"workers": -1}, "workers"),
        ("join", {}, "token"),
        ("role", {"worker": "yes"}, "worker"),
        ("listeners", {"port": 70000}, "port"),
        ("listeners", {"key": "short"}, "key"),
    ],
)
def test_wrong_field_is_named(http: httpx.Client, path: str, body: dict, param: str) -> None:
    response = http.post(f"/cluster/{path}", json=body)

    assert response.status_code == 400
    assert response.json()["error"]["data"]["param"] == param


def test_unknown_paths_and_methods_are_json(http: httpx.Client) -> None:
    missing, wrong = http.get("/cluster/nothing"), http.put("/cluster")

    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert "nothing" in missing.json()["error"]["message"]
    assert "PUT" in wrong.json()["error"]["message"]
    assert "GET" in wrong.headers["allow"]


def test_a_bench_streams_how_far_it_is_and_what_came_out(
    server: Server, http: httpx.Client
) -> None:
    response = http.post("/cluster/bench", json={"plan": {"shape": "llama-1b"}, "prompt": 9})

    lines = [line[6:] for line in response.text.splitlines() if line[:5] == "data:"]
    seen = [msgspec.json.decode(line, type=benching.BenchProgress) for line in lines]
    assert [progress.state for progress in seen] == ["loading", "measuring", "ready"]
    assert seen[-1].result == BENCH
    plan = schema.PlanRequest(shape="llama-1b")
    assert server.backend.benched == [benching.BenchRequest(plan=plan, prompt=9)]


def test_a_bench_that_fails_ends_with_the_error(server: Server, http: httpx.Client) -> None:
    server.backend.load_error = NotEnoughMemoryError(12_000_000_000, 8_000_000_000)

    response = http.post("/cluster/bench", json={"plan": {}})

    last = json.loads(response.text.strip().splitlines()[-1][6:])
    assert (last["state"], last["error"]["code"]) == ("failed", "not_enough_memory")


@pytest.mark.parametrize("wrong", [{"prompt": 0}, {"tokens": 0}, {"repeat": 0}, {"threads": 0}])
def test_a_bench_of_nothing_is_refused(
    server: Server, http: httpx.Client, wrong: dict[str, int]
) -> None:
    response = http.post("/cluster/bench", json={"plan": {}, **wrong})

    assert response.status_code == 400
    assert server.backend.benched == []
