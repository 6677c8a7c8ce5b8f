"""Forks processes that run a module which has been imported already.

    python fork_server.py SOCKET MODULE

Each request on the socket brings the process's environment, arguments and folder, and its stdin, stdout and stderr.
The process becomes a child of whoever adopts orphans, which is whoever asks (`forked.py`).
"""

import gc
import json
import os
import runpy
import socket
import sys
from importlib import import_module
from importlib.util import find_spec

STREAMS = 3
MOST_BYTES = 1 << 20


def main(asked: socket.socket, module: str) -> None:
    _import(module)
    gc.freeze()  # what is shared by all stays shared
    while True:
        request, streams, _, _ = socket.recv_fds(asked, MOST_BYTES, STREAMS)
        if not request:
            return
        ends, says = os.pipe()
        if (middle := os.fork()) == 0:
            if (process := os.fork()) == 0:
                asked.close()
                for end in (ends, says):
                    os.close(end)
                _become(module, streams, **json.loads(request))
            os.write(says, str(process).encode())
            os._exit(0)
        os.waitpid(middle, 0)  # from now on the process has another parent
        asked.sendall(os.read(ends, 32))
        for end in (ends, says, *streams):
            os.close(end)


def _import(module: str) -> None:
    """Import it and all that it needs, but leave itself to be run."""
    found = find_spec(module)
    assert found is not None
    name = f"{module}.__main__" if found.submodule_search_locations else module
    import_module(name)
    del sys.modules[name]


def _become(
    module: str,
    streams: list[int],
    *,
    environment: dict[str, str],
    arguments: list[str],
    folder: str,
) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    status = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - as Python itself does
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    del sys.path[0]  # this file's own folder, which processes started by their module do not have
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
