"""What nodes announce, and what is believed of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck.errors import UsageError
from potluck.ids import HomeId, NodeId
from potluck.net.advert import (
    Advert,
    Found,
    instance_name,
    node_of,
    parse,
    parse_address,
    properties,
)
from potluck.wire.messages import Address

NODE = NodeId("0123456789abcdef" * 4)
HOME = HomeId("ab" * 32)
THERE = (Address(host="192.168.1.5", port=47777),)


def told(advert: Advert) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in properties(advert).items()}


def advert(**changes) -> Advert:
    values = {
        "node_id": NODE, "name": "Laptop", "role": "worker", "port": 1, "home": HOME,
        "joinable": True, "devices": "RTX 4070, 12 GB", "protocol": 1,
    }  # fmt: skip
    return Advert(**(values | changes))


def test_what_is_announced_is_what_is_found() -> None:
    assert parse(NODE, told(advert()), THERE) == Found(
        node_id=NODE,
        name="Laptop",
        role="worker",
        addresses=THERE,
        home=HOME,
        joinable=True,
        devices="RTX 4070, 12 GB",
        protocol=1,
    )


def test_a_name_of_an_instance_is_the_node_and_fits_dns() -> None:
    name = instance_name(NODE)

    assert node_of(name) == NODE
    assert all(len(label) <= 63 for label in name.split("."))


@pytest.mark.parametrize(
    "name", ["", "laptop._potluck._tcp.local.", "../../x._potluck._tcp.local.", "x.local.", "äö"]
)
def test_other_instances_are_no_nodes(name: str) -> None:
    assert node_of(name) is None


def test_a_long_name_is_cut_between_characters() -> None:
    found = parse(NODE, told(advert(name="é" * 500, devices="\x1b[31m😀" * 100)), THERE)

    assert found is not None
    assert found.name == "é" * 100
    assert "\x1b" not in found.devices
    assert len(found.devices.encode()) <= 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"id", b"ff" * 32), (b"id", None), (b"v", b""), (b"v", b"1x"), (b"v", b"9" * 300),
        (b"v", "\u0663".encode()), (b"role", b"admin"), (b"role", b"x" * 300),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_no_node(key: bytes, value: bytes | None) -> None:
    assert parse(NODE, told(advert()) | {key: value}, THERE) is None


def test_a_node_without_an_address_is_none() -> None:
    assert parse(NODE, told(advert()), ()) is None


def test_a_home_that_is_no_id_is_no_home() -> None:
    found = parse(NODE, told(advert()) | {b"home": b"../../etc"}, THERE)

    assert found is not None
    assert found.home is None


@given(
    st.dictionaries(
        st.sampled_from([b"v", b"id", b"name", b"role", b"home", b"join", b"dev"]),
        st.none() | st.binary(max_size=300),
    )
)
def test_any_txt_record_is_a_bounded_node_or_none(txt: dict[bytes, bytes | None]) -> None:
    found = parse(NODE, told(advert()) | txt, THERE)

    if found is not None:
        assert found.node_id == NODE
        assert len(found.name) <= 200
        assert len(found.devices) <= 200
        assert (found.name + found.devices).isprintable()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("192.168.1.5", "192.168.1.5", 47777),
        (" 192.168.1.5:1 ", "192.168.1.5", 1),
        ("laptop.local", "laptop.local", 47777),
        ("laptop:65535", "laptop", 65535),
        ("fd00::2", "fd00::2", 47777),
        ("[fd00::2]", "fd00::2", 47777),
        ("[fd00::2]:8", "fd00::2", 8),
        ("fe80::1%eth0", "fe80::1%eth0", 47777),
    ],
)
def test_addresses_are_read_as_people_type_them(text: str, host: str, port: int) -> None:
    assert parse_address(text, default_port=47777) == Address(host=host, port=port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ":1",
        "a:0",
        "a:65536",
        "a:b",
        "a b",
        "http://a",
        "[a]:1",
        "[fd00::2",
        "a/b",
        "x" * 300,
    ],
)
def test_what_is_no_address_is_said_so(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        parse_address(text, default_port=47777)
