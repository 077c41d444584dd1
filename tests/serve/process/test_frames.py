"""What goes into a frame comes out of it, however the bytes arrive."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.serve.messages import Abort, Delta, Sampling, Submit
from ridgeline.serve.process.frames import (
    HEADER,
    LONGEST_BYTES,
    BrokenFrame,
    frame,
    from_engine,
    next_frame,
    read_frame,
    to_engine,
)

MESSAGES = [
    Submit(id="é", prompt=(1, 2**31), sampling=Sampling(stop=("x",), logit_bias={3: -1.5})),
    Abort(id=""),
]


def test_messages_survive_the_wire() -> None:
    assert to_engine.decode(frame(MESSAGES)[HEADER.size :]) == MESSAGES
    deltas = [Delta(id="a", tokens=(1,), text="日")] * 3
    assert from_engine.decode(frame(deltas)[HEADER.size :]) == deltas


@given(st.lists(st.integers(1, 40), max_size=20))
def test_both_readers_put_pieces_together(sizes: list[int]) -> None:
    data = frame(MESSAGES) + frame(MESSAGES[:1])

    async def read() -> list[bytes | None]:
        reader = asyncio.StreamReader()
        rest = data
        for size in sizes:
            reader.feed_data(rest[:size])
            rest = rest[size:]
        reader.feed_data(rest)
        reader.feed_eof()
        return [await next_frame(reader) for _ in range(3)]

    first, second, end = asyncio.run(read())
    assert to_engine.decode(first or b"") == MESSAGES
    assert to_engine.decode(second or b"") == MESSAGES[:1]
    assert end is None


def test_a_socket_that_closes_in_the_middle_is_an_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=lambda: (theirs.sendall(frame(MESSAGES) + b"\0\0"),
                                                  theirs.close()))  # fmt: skip
        sender.start()
        assert to_engine.decode(read_frame(ours) or b"") == MESSAGES
        assert read_frame(ours) is None
        sender.join()


def test_nonsense_is_noticed_before_memory_is_asked_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(HEADER.pack(LONGEST_BYTES + 1))
        with pytest.raises(BrokenFrame):
            read_frame(ours)
