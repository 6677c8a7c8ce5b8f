"""Tokens: one line that says everything, and whose typing errors are found."""

import base64
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import PairingError
from potluck.ids import HomeId
from potluck.wire.messages import Address
from potluck.wire.token import MAX_INVITES, Invites, PairingToken

HOME = HomeId("0123456789abcdef" * 4)
ADDRESSES = (Address(host="192.168.1.7", port=4242), Address(host="fd00::1", port=1))

hosts = st.ip_addresses().map(str)
addresses = st.lists(st.builds(Address, host=hosts, port=st.integers(1, 65535)), max_size=3).map(
    tuple
)


def make(addresses: tuple[Address, ...] = ADDRESSES) -> PairingToken:
    return PairingToken(
        home=bytes.fromhex(HOME)[:16], secret=b"0123456789abcdef", addresses=addresses
    )


def encoded(body: bytes) -> str:
    check = hashlib.sha256(b"potluck token" + body).digest()[:4]
    return "potluck-" + base64.b32encode(body + check).decode().rstrip("=").lower()


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), addresses)
def test_a_token_reads_as_it_was_written(
    home: bytes, secret: bytes, addresses: tuple[Address, ...]
) -> None:
    token = PairingToken(home=home, secret=secret, addresses=addresses)

    assert PairingToken.parse(str(token)) == token


def test_a_token_is_one_word_of_a_line() -> None:
    text = str(make())

    assert text.startswith("potluck-")
    assert text == text.lower()
    assert len(text) < 200
    assert text.replace("-", "").isalnum()


def test_a_token_may_be_pasted_with_line_breaks_and_capitals() -> None:
    text = str(make())
    pasted = f"  {text[:40].upper()}\r\n {text[40:]}\n"

    assert PairingToken.parse(pasted) == make()


@given(st.data())
def test_a_typing_error_is_found(data: st.DataObject) -> None:
    text = str(make())
    index = data.draw(st.integers(len("potluck-"), len(text) - 2))
    other = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567 01"))
    typo = text[:index] + other + text[index + 1 :]
    if typo == text:
        return
    with pytest.raises(PairingError, match="potluck invite"):
        PairingToken.parse(typo)


@given(st.text())
def test_no_text_does_anything_but_fail(text: str) -> None:
    for candidate in (text, "potluck-" + text):
        with pytest.raises(PairingError):
            PairingToken.parse(candidate)


@given(st.binary(max_size=200))
def test_no_bytes_with_a_right_checksum_crash_the_reader(body: bytes) -> None:
    try:
        token = PairingToken.parse(encoded(body))
    except PairingError:
        return
    assert PairingToken.parse(str(token)) == token


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not copied whole"),
        (b"\2" + bytes(33), "newer Potluck"),
        (b"\1" + bytes(32) + b"\1", "makes no sense"),
        (b"\1" + bytes(32) + b"\1\5" + bytes(6), "makes no sense"),
        (b"\1" + bytes(32) + b"\0left over", "makes no sense"),
        (b"\1" + bytes(32) + b"\1\4\1\2\3\4\0\0", "makes no sense"),
    ],
)
def test_a_token_that_says_nonsense_is_told_so(body: bytes, why: str) -> None:
    with pytest.raises(PairingError, match=why):
        PairingToken.parse(encoded(body))


def test_a_token_knows_its_home() -> None:
    assert make().is_of(HOME)
    assert not make().is_of(HomeId("f" * 64))


def test_the_secret_is_not_shown_by_accident() -> None:
    token = make()

    assert repr(token.secret) not in repr(token)
    assert token.secret not in token.invite


def test_addresses_that_mean_something_here_only_are_left_out() -> None:
    offered = [
        Address(host="fe80::1%eth0", port=1),
        Address(host="fe80::1", port=1),
        Address(host="main.local", port=1),
        *(Address(host=f"10.0.0.{n}", port=9) for n in range(1, 6)),
    ]
    token = Invites(os.urandom).create(HOME, offered, now=0)

    assert [a.host for a in token.addresses] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


def test_too_many_open_invites_end_the_oldest() -> None:
    invites = Invites(os.urandom)
    tokens = [invites.create(HOME, [], now=0) for _ in range(MAX_INVITES + 1)]

    assert invites.secret(tokens[0].invite, now=1) is None
    assert all(invites.secret(t.invite, now=1) == t.secret for t in tokens[1:])
