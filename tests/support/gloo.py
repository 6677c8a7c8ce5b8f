"""Gloo in place of NCCL, between processes of one computer."""

from typing import Any

import torch
import torch.distributed as dist

from potluck.engine.rank_sums.collective import Transport


def _join(store: Any, rank: int, world: int, timeout: Any) -> Any:
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(hostname="127.0.0.1")]
    options._timeout = timeout
    return kind(store, rank, world, options)


GLOO = Transport(device=torch.device("cpu"), join=_join)
