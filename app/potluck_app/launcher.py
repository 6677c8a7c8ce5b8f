"""Find the node or start it. The function blocks: the window calls it in the background."""

from potluck.settings import Folders, read_node_file
from potluck_app.http import Endpoint


def find_or_start(folders: Folders) -> Endpoint:
    """Return the running node of these folders. Start a node if there is none.

    Raises:
        PotluckError: the node could not be started, or it hangs. The message is for people.
    """
    from potluck import launch  # here, in the background: it reads HTTP and TLS

    client = launch.find_or_start(folders)
    node = read_node_file(folders)
    if node is None or node.port != client.port:
        raise launch.NodeStartError("Potluck ended again while it started. Wait a moment.")
    return Endpoint(port=node.port, token=node.token)
