"""The local API is described as it is: every route, and what really comes and goes."""

import json
from typing import Any

import httpx
import jsonschema
import pytest
from fake_backend import FakeBackend
from starlette.routing import Route

from potluck.api.cluster import cluster_operations
from potluck.api.http.operations import describe, routes

pytestmark = pytest.mark.net


@pytest.fixture
def document(http: httpx.Client) -> Any:
    return http.get("/cluster/openapi.json").json()


def check(document: Any, schema: Any, value: object) -> None:
    """Fail if a value does not fit a schema of the document."""
    whole = {**schema, "components": document["components"]}
    jsonschema.Draft202012Validator(whole).validate(value)


def given(document: Any, method: str, path: str) -> Any:
    (content,) = document["paths"][path][method]["responses"]["200"]["content"].values()
    return content["schema"]


def test_every_operation_is_described_with_its_sentence(document: Any) -> None:
    backend: Any = FakeBackend()
    served = {
        (method, route.path.replace(":int", ""))
        for route in routes(cluster_operations(backend), backend)
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }

    described = {
        (method.upper(), path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert described.keys() == served - {("GET", "/cluster/openapi.json")}
    assert all(operation["summary"].endswith(".") for operation in described.values())


def test_what_is_referred_to_is_there(document: Any) -> None:
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names <= document["components"]["schemas"].keys()


@pytest.mark.parametrize(
    "path",
    ["/health", "/cluster", "/cluster/models", "/cluster/served", "/cluster/hub/recommended"],
)
def test_what_is_given_is_as_described(http: httpx.Client, document: Any, path: str) -> None:
    check(document, given(document, "get", path), http.get(path).json())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/cluster/pairings", {"target": "here"}),
        ("/cluster/plan", {"scheme": "int4"}),
        ("/cluster/models/prune", {}),
        ("/cluster/tokens", {"prompt": {"type": "TextPrompt", "text": "hi"}}),
    ],
)
def test_what_is_taken_is_as_described(
    http: httpx.Client, document: Any, path: str, body: dict[str, Any]
) -> None:
    operation = document["paths"][path]["post"]
    check(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
    answer = http.post(path, json=body)
    assert answer.status_code == 200
    check(document, given(document, "post", path), answer.json())


def test_events_and_errors_are_as_described(http: httpx.Client, document: Any) -> None:
    body = {"prompt": {"type": "TextPrompt", "text": "hi"}}
    schema = given(document, "post", "/cluster/answers")
    events = [
        json.loads(line.removeprefix("data: "))
        for line in http.post("/cluster/answers", json=body).text.splitlines()
        if line.startswith("data: ")
    ]
    assert len(events) > 2
    for event in events:
        check(document, schema, event)

    error = document["paths"]["/cluster/plan"]["post"]["responses"]["default"]
    refused = http.post("/cluster/plan", json={"scheme": "int3"})
    assert refused.status_code == 400
    check(document, error["content"]["application/json"]["schema"], refused.json())


def test_a_parameter_of_the_path_has_its_type() -> None:
    backend: Any = FakeBackend()
    paths: Any = describe(cluster_operations(backend))["paths"]
    (parameter,) = paths["/cluster/listeners/{port}"]["delete"]["parameters"]
    assert (parameter["name"], parameter["schema"]) == ("port", {"type": "integer"})
