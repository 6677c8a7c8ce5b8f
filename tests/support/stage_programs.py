"""Small programs that stand for a stage process, without torch, and the handle of one."""

import asyncio
from pathlib import Path

import pytest

from potluck.cluster.processes import handle
from potluck.cluster.processes.handle import StageHandle
from potluck.cluster.processes.messages import Start
from potluck.cluster.processes.stage_process import HandleTimes
from potluck.errors import PotluckError
from potluck.wire.messages import NodeInfo, StepFailed

ME = NodeInfo(node_id="ab" * 32, name="Desk", version="0", os="Linux", arch="x")
# What every one of the programs begins with: the other end of the pipe, without torch.
PRELUDE = """
import sys, time
from potluck.cluster.processes.messages import *
from potluck.wire.messages import *
DEVICE = DeviceInfo(kind="cpu", name="fake", memory_total=10, memory_free=5)
def say(message):
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()
def hear():
    while True:
        frame = read_frame(sys.stdin.buffer)
        if frame is None:
            sys.exit(0)
        message = decode_to_stage(frame)
        if not isinstance(message, HealthCheck):
            return message
        say(Health(is_stuck=False))
hear()
"""
READY = "say(Ready(devices=(DEVICE,), activation_port=4711))\n"
DEAF = "while True: hear()\n"


class Process:
    """A handle whose process runs this program."""

    def __init__(
        self,
        folder: Path,
        program: str,
        monkeypatch: pytest.MonkeyPatch,
        times: HandleTimes | None = None,
    ) -> None:
        self.failures: list[StepFailed] = []
        self.exits: list[PotluckError] = []
        self.memory: list[int] = []
        script = folder / "process.py"
        script.write_text(PRELUDE + program)
        start = asyncio.create_subprocess_exec

        async def exec_script(
            program: str, *_: str, **options: object
        ) -> asyncio.subprocess.Process:
            return await start(program, str(script), **options)  # type: ignore[arg-type]

        monkeypatch.setattr(handle.asyncio, "create_subprocess_exec", exec_script)
        self.log = folder / "logs" / "engine.log"
        self.previous_log = folder / "logs" / "engine.previous.log"
        self.handle = StageHandle(
            Start(identity_folder="", me=ME),
            log_path=self.log,
            on_step_failed=self.failures.append,
            on_changed=lambda: self.memory.append(self.handle.devices[0].memory_free),
            on_exit=self.exits.append,
            times=times,
        )

    async def __aenter__(self) -> "Process":
        await self.handle.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.handle.stop()
