"""A minimal OpenAI-compatible server that answers by the clock, in a process of its own.

`python -m tests.serve.loadtest.stub_server SETTINGS` prints its address when it listens.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec


class Stub(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ttft_seconds: float = 0.02
    itl_seconds: float = 0.002
    bundle: int = 1  # tokens in a chunk
    usage: bool = True
    slots: int = 10_000  # requests that are answered at once; the others wait
    status: int = 200
    fail_every: int = 0  # every n-th request is refused with 503
    break_every: int = 0  # every n-th stream ends in the middle
    refuses: tuple[str, ...] = ()  # fields that are answered with 400
    ignores_length: bool = False  # stops after 3 tokens unless told to go on
    log: str = ""  # every request's body is appended here


def append(path: str, body: bytes) -> None:
    with open(path, "ab") as log:
        log.write(body + b"\n")


def event(document: object) -> bytes:
    data = b"data: " + msgspec.json.encode(document) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


class Connection(asyncio.Protocol):
    count = 0
    slots: asyncio.Semaphore

    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.tasks: set[asyncio.Task] = set()

    def connection_lost(self, error: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            task = asyncio.ensure_future(self.answer(head, body))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def plain(self, status: int, document: object) -> None:
        data = msgspec.json.encode(document)
        self.transport.write(
            b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (status, len(data), data)
        )

    async def answer(self, head: bytes, body: bytes) -> None:
        stub = self.stub
        if head.startswith(b"GET"):
            self.plain(200, {"object": "list", "data": [{"id": "stub"}]})
            return
        asked = msgspec.json.decode(body)
        if stub.log:
            append(stub.log, body)
        refused = [name for name in stub.refuses if name in asked]
        if refused:
            self.plain(400, {"error": {"message": f"no parameter {refused[0]}"}})
            return
        Connection.count += 1
        number = Connection.count
        if stub.status != 200 or (stub.fail_every and number % stub.fail_every == 0):
            self.plain(stub.status if stub.status != 200 else 503, {"error": {"message": "busy"}})
            return
        async with Connection.slots:
            breaks = bool(stub.break_every) and number % stub.break_every == 0
            await self.stream(asked, chat=b"/chat/" in head.split(b"\r\n")[0], breaks=breaks)

    async def stream(self, asked: dict, *, chat: bool, breaks: bool) -> None:
        stub = self.stub
        tokens = asked["max_tokens"]
        if stub.ignores_length and "ignore_eos" not in asked:
            tokens = min(tokens, 3)
        prompt = asked["messages"][0]["content"] if chat else asked["prompt"]
        counted = len(prompt.split() if isinstance(prompt, str) else prompt)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if chat:  # an empty role chunk comes at once, and is no token
            self.transport.write(
                event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            )
        loop = asyncio.get_running_loop()
        due = loop.time() + stub.ttft_seconds
        for place in range(0, tokens, stub.bundle):
            await asyncio.sleep(max(0.0, due - loop.time()))
            size = min(stub.bundle, tokens - place)
            last = place + size >= tokens
            text = " word" * size
            choice: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
            choice["finish_reason"] = "length" if last else None
            if breaks and place >= tokens // 2:
                self.transport.close()
                return
            self.transport.write(event({"choices": [choice]}))
            due += stub.itl_seconds * stub.bundle
        if stub.usage:
            usage = {"prompt_tokens": counted, "completion_tokens": tokens,
                     "prompt_tokens_details": {"cached_tokens": 0}}  # fmt: skip
            self.transport.write(event({"choices": [], "usage": usage}))
        done = b"data: [DONE]\n\n"
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(done), done))


async def serve(stub: Stub) -> None:
    Connection.slots = asyncio.Semaphore(stub.slots)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(stub), "127.0.0.1", 0, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Stub)))
