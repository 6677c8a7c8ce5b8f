"""How people know a network's adapters on each system."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil


def names_of_addresses(
    *,
    system: str = sys.platform,
    adapters: Callable[[], Mapping[str, Sequence[Any]]] = psutil.net_if_addrs,
) -> Mapping[str, str]:
    """The name of the adapter of each address, where it is another one than its maker gave it.

    Args:
        system: as in `sys.platform`. On Windows people see “Wi-Fi”, and programs the name of a chip.
        adapters: asks the system for all, by the names that people see.
    """
    if system != "win32":
        return {}
    return {
        address.address.partition("%")[0]: name
        for name, addresses in adapters().items()
        for address in addresses
    }
