"""Adapters have the names that people see."""

from types import SimpleNamespace

import pytest

from potluck.system.networks import names_of_addresses

WINDOWS = {
    "Wi-Fi": [SimpleNamespace(address="10.0.0.5"), SimpleNamespace(address="fe80::1%12")],
    "Ethernet 2": [SimpleNamespace(address="10.0.1.5")],
}


def test_on_windows_each_address_leads_to_the_name_that_people_see() -> None:
    names = names_of_addresses(system="win32", adapters=lambda: WINDOWS)

    assert names == {"10.0.0.5": "Wi-Fi", "fe80::1": "Wi-Fi", "10.0.1.5": "Ethernet 2"}


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_elsewhere_programs_see_the_same_names(system: str) -> None:
    def none() -> dict[str, list[object]]:
        pytest.fail("nobody needs them")

    assert names_of_addresses(system=system, adapters=none) == {}
