"""`models verify`, `prune`, `limit` and `idle`, with a fake node."""

import json
import re
from collections.abc import Callable

import msgspec
import pytest
from fake_backend import Server

from potluck.api.values import weights

pytestmark = pytest.mark.net

Potluck = Callable[..., int]
Output = pytest.CaptureFixture[str]


def test_intact_weights_are_said_to_be_intact(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "verify") == 0
    shown = capsys.readouterr().out
    assert re.search(r"guide +8 MB +intact", shown)
    assert re.search(r"stored weights +3 MB +intact", shown)

    assert potluck("models", "verify", "--json") == 0
    assert json.loads(capsys.readouterr().out)["store"] == {
        "tensors": 2, "nbytes": 3_000_000, "dropped": [],
    }  # fmt: skip


def test_damaged_weights_are_named_and_change_the_exit_status(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    server.backend.verified = weights.Verified(
        models=(
            weights.VerifiedModel(
                name="big", path="/big", nbytes=5, damaged=tuple(f"t{n}" for n in range(5))
            ),
            weights.VerifiedModel(name="odd", path="/odd", nbytes=0, problem="No weights."),
        ),
        store=weights.VerifiedStore(tensors=2, nbytes=3, dropped=("ab" * 32,)),
    )

    assert potluck("models", "verify", "big") == 1
    shown = capsys.readouterr().out
    assert "5 damaged: t0, t1, t2, …" in shown
    assert "No weights." in shown
    assert "1 damaged and deleted" in shown
    assert "Download the damaged models again" in shown
    assert "sent again" in shown


def test_a_model_that_is_not_there_cannot_be_verified(potluck: Potluck, capsys: Output) -> None:
    assert potluck("models", "verify", "absent") == 2
    assert "no model 'absent'" in capsys.readouterr().err


def test_weights_are_pruned_only_when_a_person_or_an_option_says_so(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("models", "prune") == 2
    assert "5 MB of stored weights (4 files)" in capsys.readouterr().err
    assert potluck("models", "prune", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "tensors": 4, "nbytes": 5_000_000, "deleted": False, "sessions": 0,
    }  # fmt: skip
    assert all(request.dry_run for request in server.backend.prunes)

    assert potluck("models", "prune", "--yes") == 0
    assert "Deleted 5 MB" in capsys.readouterr().out
    assert not server.backend.prunes[-1].dry_run


def test_pruning_asks_at_a_terminal(
    server: Server, potluck: Potluck, capsys: Output, typed: Callable[[str], None]
) -> None:
    for answer, said in (("n", "Nothing is deleted."), ("y", "Deleted 5 MB")):
        typed(answer + "\n")
        assert potluck("models", "prune") == 0
        assert said in capsys.readouterr().out

    server.backend.pruned = weights.Pruned(tensors=0, nbytes=0, deleted=False)
    assert potluck("models", "prune") == 0
    assert "All stored weights are needed" in capsys.readouterr().out


def test_the_time_after_which_a_model_is_unloaded_is_set_and_printed(
    potluck: Potluck, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert potluck("models", "idle") == 0
    assert capsys.readouterr().out == "A model stays loaded until it is unloaded.\n"
    node = msgspec.structs.replace(server.backend.current.node, idle_unload_s=90.0)
    server.update(node=node)
    assert potluck("models", "idle", "1.5") == 0
    assert "for 1.5 minutes" in capsys.readouterr().out
    assert potluck("models", "idle", "0", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"idle_unload_s": 90.0}
    assert [role.idle_unload_s for role in server.backend.roles] == [90.0, 0.0]


def test_the_limit_of_sending_is_set_and_printed(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("models", "limit") == 0
    assert "as fast as it goes" in capsys.readouterr().out
    node = msgspec.structs.replace(server.backend.current.node, upload_limit_mbit=200)
    server.update(node=node)

    assert potluck("models", "limit", "200") == 0
    assert "200 Mbit/s" in capsys.readouterr().out
    assert potluck("models", "limit", "0", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"upload_limit_mbit": 200, "download_limit_mb": None}
    assert [role.upload_limit_mbit for role in server.backend.roles] == [200, 0]


def test_the_limit_of_downloads_is_set_beside_it(
    server: Server, potluck: Potluck, capsys: Output
) -> None:
    assert potluck("models", "limit") == 0
    assert "downloaded as fast as it goes" in capsys.readouterr().out
    node = msgspec.structs.replace(server.backend.current.node, download_limit_mb=5)
    server.update(node=node)

    assert potluck("models", "limit", "--downloads", "5") == 0
    assert "at 5 MB/s" in capsys.readouterr().out
    assert potluck("models", "limit", "--downloads", "0") == 0
    roles = [(role.upload_limit_mbit, role.download_limit_mb) for role in server.backend.roles]
    assert roles == [(None, 5), (None, 0)]
