"""A process that behaves like `potluck node` to the program that starts it.

fake_node.py HOME [silent|broken]
"""

import os
import sys
from pathlib import Path

from fake_backend import TOKEN, serving

from potluck.settings import Folders, NodeFile, exclusive, remove_node_file, write_node_file


def main(home: str, mode: str = "") -> None:
    folders = Folders.of(Path(home), {})
    with exclusive(folders.node_lock):
        with (folders.state / "starts").open("a") as starts:
            starts.write("x")
        if mode == "broken":
            sys.exit("potluck: The kitchen is on fire.")
        with serving() as server:
            node = NodeFile(pid=os.getpid(), port=server.port, token=TOKEN, version="0")
            if mode != "silent":
                write_node_file(folders, node)
            server.backend.stopped.wait(30)
            remove_node_file(folders, node)


main(*sys.argv[1:])
