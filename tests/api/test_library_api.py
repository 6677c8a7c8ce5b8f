"""The endpoints for models, over the real server, with a fake node."""

import httpx
import pytest
from fake_backend import Server

from potluck.errors import DiskFullError, OfflineError

pytestmark = pytest.mark.net


def test_recommended_models_come_with_their_fit(http: httpx.Client) -> None:
    (model,) = http.get("/cluster/hub/recommended").json()["models"]

    assert (model["best"], model["fit"]["alone"]) == ("Q4_K_M", True)
    assert [variant["fit"]["fits"] for variant in model["variants"]] == [False, True]


def test_search_needs_words(http: httpx.Client) -> None:
    assert http.get("/cluster/hub/search", params={"query": "tiny"}).json()["models"]
    refused = http.get("/cluster/hub/search", params={"query": " "})
    assert (refused.status_code, refused.json()["error"]["data"]) == (400, {"param": "query"})


def test_offline_is_no_error(http: httpx.Client, server: Server) -> None:
    server.backend.library.offline = True

    answer = http.get("/cluster/hub/search", params={"query": "tiny"})

    assert (answer.status_code, answer.json()["offline"]) == (200, True)


def test_details_of_one_model(http: httpx.Client) -> None:
    assert http.get("/cluster/hub/models/anna/tiny-GGUF").json()["name"] == "anna/tiny-GGUF"
    assert http.get("/cluster/hub/models/anna/none").status_code == 404


def test_download_is_begun_and_seen_in_the_state(http: httpx.Client, server: Server) -> None:
    begun = http.post("/cluster/downloads", json={"model": "anna/tiny-GGUF"}).json()

    assert (begun["state"], begun["done"], begun["total"]) == ("running", 400, 1000)
    assert http.get("/cluster").json()["downloads"][0]["state"] == "done"
    changed = http.post(f"/cluster/downloads/{begun['id']}", json={"action": "pause"}).json()
    assert changed["state"] == "paused"
    assert server.backend.library.changes == [("d1", "pause")]


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "../etc", "a/b c"])
def test_name_that_is_none_of_the_hub_is_refused(http: httpx.Client, name: str) -> None:
    assert http.post("/cluster/downloads", json={"model": name}).status_code == 400


@pytest.mark.parametrize("error", [OfflineError("no"), DiskFullError("no")])
def test_download_that_is_not_possible_now_is_no_fault_of_the_request(
    http: httpx.Client, server: Server, error: OfflineError | DiskFullError
) -> None:
    server.backend.library.error = error

    refused = http.post("/cluster/downloads", json={"model": "a/b"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, error.code)


def test_token_is_put_and_never_read(http: httpx.Client) -> None:
    put = http.put("/cluster/hub/token", json={"token": "hf_mine"})

    assert put.json() == {"has_token": True, "name": "anna"}
    assert "hf_mine" not in http.get("/cluster/hub/token").text
    assert http.put("/cluster/hub/token", json={"token": "two words"}).status_code == 400


def test_model_is_deleted_unless_it_is_loaded(http: httpx.Client) -> None:
    assert http.post("/cluster/models/delete", json={"model": "big"}).json()["nbytes"] == 5 * 10**9
    assert http.post("/cluster/models/delete", json={"model": "guide"}).status_code == 400


def test_folder_of_models_is_added(http: httpx.Client, server: Server) -> None:
    found = http.post("/cluster/models/folders", json={"path": "/mnt/models"}).json()

    assert found["models"] == ["one", "two"]
    assert server.backend.library.folders == ["/mnt/models"]
