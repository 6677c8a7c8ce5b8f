"""Only what a key of the package has signed is read, whatever else is changed."""

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from releases import KEY, KEYS, STRANGER, altered, signed
from sealing import key_text, seal

from potluck.errors import IntegrityError
from potluck.update.envelope import MOST_BYTES, RELEASE_TYPE, unseal
from potluck.update.release import read_release, this_machine
from potluck.update.versions import is_newer

DATES = b',"issued":1,"expires":2}'


def test_what_was_sealed_is_read_again() -> None:
    assert unseal(seal(b"news", "text/plain", KEY), "text/plain", KEYS) == b"news"


def test_the_signed_bytes_are_those_of_the_standard() -> None:
    envelope = json.loads(seal(b"hello world", "http://example.com/HelloWorld", KEY))
    signature = KEY.sign(b"DSSEv1 29 http://example.com/HelloWorld 11 hello world")

    assert base64.b64decode(envelope["signatures"][0]["sig"]) == signature


def test_one_of_several_keys_is_enough() -> None:
    keys = (key_text(STRANGER.public_key()), *KEYS)
    assert unseal(seal(b"news", "text/plain", KEY), "text/plain", keys) == b"news"


@pytest.mark.parametrize("key", [KEY, STRANGER])
def test_while_keys_change_packages_with_either_read_it(key: Ed25519PrivateKey) -> None:
    envelope = seal(b"news", "text/plain", KEY, STRANGER)
    assert unseal(envelope, "text/plain", [key_text(key.public_key())]) == b"news"


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (signed("2.0.0", key=STRANGER), "not signed by the makers"),
        (altered(signed("2.0.0")), "not signed by the makers"),
        (seal(b"news", "text/plain", KEY), "another document"),
        (signed("2.0.0")[:-20], "damaged"),
        (b'{"payload":"*","payloadType":"x","signatures":[]}', "damaged"),
        (b'{"payload":"","payloadType":"x","signatures":[{"sig":1}]}', "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"\xff\xfe", "damaged"),
        (b"", "damaged"),
        (b" " * (MOST_BYTES + 1), "too large"),
    ],
    ids=[
        "stranger",
        "altered",
        "other",
        "cut",
        "base64",
        "types",
        "deep",
        "bytes",
        "empty",
        "huge",
    ],
)
def test_what_is_not_as_it_was_signed_is_refused(envelope: bytes, why: str) -> None:
    with pytest.raises(IntegrityError, match=why):
        unseal(envelope, RELEASE_TYPE, KEYS)


def test_without_a_key_nothing_is_believed() -> None:
    with pytest.raises(IntegrityError, match="not signed"):
        unseal(signed("2.0.0"), RELEASE_TYPE, ())


@pytest.mark.parametrize("key", ["", "AAAA", "nonsense!"])
def test_a_key_that_is_none_is_named(key: str) -> None:
    with pytest.raises(IntegrityError, match="Install Potluck again"):
        unseal(signed("2.0.0"), RELEASE_TYPE, (key,))


@pytest.mark.parametrize(
    "document",
    [
        b"{}",
        b'{"version":"2.0.0","packages":[]}',  # it would never end
        b'{"version":"../..","packages":[]' + DATES,
        b'{"version":"two","packages":[]' + DATES,
        b'{"version":"2.0.0","packages":[],"issued":1,"expires":1e300}',
        b'{"version":"2.0.0","packages":[{"name":"a/b"}]' + DATES,
        b'{"version":"2.0.0","packages":[{"name":"a","system":"linux","machine":"x","kind":"tar","nbytes":1,'
        b'"sha256":"' + b"0" * 64 + b'","url":"ftp://a/b"}]' + DATES,
    ],
)
def test_a_signed_document_that_is_no_release_is_refused_too(document: bytes) -> None:
    with pytest.raises(IntegrityError, match="cannot read it"):
        read_release(seal(document, RELEASE_TYPE, KEY), KEYS)


def test_fields_of_later_releases_are_ignored() -> None:
    document = b'{"version":"2.0.0","packages":[],"protocol":[3]' + DATES
    assert read_release(seal(document, RELEASE_TYPE, KEY), KEYS).version == "2.0.0"


def test_versions_are_compared_as_numbers() -> None:
    assert is_newer("0.10.0", "0.9.0")
    assert not is_newer("0.9.0", "0.9.0")
    assert not is_newer("0.9.0rc1", "0.9.0")
    assert not is_newer("nonsense", "0.9.0")


def test_processors_have_one_name_on_all_systems() -> None:
    assert [this_machine(name) for name in ("AMD64", "x86_64", "arm64", "aarch64")] == [
        "x86_64",
        "x86_64",
        "aarch64",
        "aarch64",
    ]
