"""Where the node is: found, or started. Blocks; the window calls it in the background."""

from potluck import launch
from potluck.settings import Folders, read_node_file
from potluck_app.http import Endpoint


def find_or_start(folders: Folders) -> Endpoint:
    """The running node of these folders; started if there is none.

    Raises:
        PotluckError: it could not be started, or hangs; a sentence for the person.
    """
    client = launch.find_or_start(folders)
    node = read_node_file(folders)
    if node is None or node.port != client.port:
        raise launch.NodeStartError("Potluck's node ended again while it started. Wait a moment.")
    return Endpoint(port=node.port, token=node.token)
