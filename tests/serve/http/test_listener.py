"""What a connection to the server is like."""

from __future__ import annotations

import socket

from ridgeline.serve.process.listener import listening


def test_a_token_is_sent_at_once_and_waits_for_no_acknowledgement() -> None:
    with listening("127.0.0.1", 0) as listener:
        listener.listen()
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
