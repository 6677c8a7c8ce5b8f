"""Identities of homes, and TLS between two of them over memory BIOs, without sockets."""

import ssl
from pathlib import Path

from potluck.ids import HomeId
from potluck.net.identity import Identity, PeerIdentity
from potluck.wire.certificates import tls_name


def make(folder: Path, name: str) -> Identity:
    return Identity.load_or_create(folder / name, name)


def join(master: Identity, worker: Identity, name: str = "Anna's home") -> HomeId:
    home = master.create_home(name)
    member = master.issue(worker.certificate_der)
    worker.add_home(
        ca_pem=home.ca_pem, certificate_pem=member, name=home.name, master=master.node_id
    )
    return home.home_id


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake in memory, and return both ends."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    a = client.wrap_bio(to_client, to_server, server_hostname=name)
    b = server.wrap_bio(to_server, to_client, server_side=True)
    done = [False, False]
    for _ in range(10):
        for i, end in enumerate((a, b)):
            try:
                if not done[i]:
                    end.do_handshake()
                done[i] = True
            except ssl.SSLWantReadError:
                pass
        if all(done):
            return a, b
    raise AssertionError("the handshake does not end")


def dial(
    client: Identity, server: Identity, home: HomeId
) -> tuple[PeerIdentity | None, PeerIdentity | None]:
    """Return whom the client sees, and whom the server sees."""
    name = tls_name(server.node_id, home)
    a, b = handshake(client.client_context(home), server.server_context(), name)
    return client.authenticate(a, home), server.authenticate(b)
