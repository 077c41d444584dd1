"""Real server processes for tests: started on a free port, their logs kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from tests.cradle import Child, cradle

ROOT = Path(__file__).parents[3]
LIBRARY = ROOT / "examples/models/library"
TEMPLATE = (
    "{% for tool in tools or [] %}<tool>{{ tool.function.name }}</tool>\n{% endfor %}"
    "{% if reasoning_effort %}think: {{ reasoning_effort }}\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'forbidden' %}{{ raise_exception('no') }}{% endif %}"
    "{{ message.role }}: "
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}{{ extra or '' }}"
)
DEADLINE_SECONDS = 120.0
NUM_WORDS = 5
"""Of a stub's server whose limits are the product's: those are set before their readers import."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Made once: reading the machine's certificates takes 30 ms, for each client anew."""
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def chat_model(folder: Path) -> Path:
    """A copy of the library model with a chat template."""
    target = folder / "library"
    shutil.copytree(LIBRARY, target)
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return target


class Server:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes] | Child, log: Path) -> None:
        self.process = process
        self._log = log
        self.address = ""

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def events(self) -> list[dict[str, Any]]:
        whole = self.log.rpartition("\n")[0]  # the last line may still be under way
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        found = re.search(r"https?://\S+", line)
        assert found, self.log
        self.address = found[0].removesuffix("/v1")

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.address + path, timeout=30, verify=NO_TLS, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.address + path, json=body, timeout=30, verify=NO_TLS, **options)

    @property
    def num_files(self) -> int:
        """That the server has open, connections among them."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.process.pid)

    def connect(self) -> socket.socket:
        """A connection on which nothing was sent yet."""
        host, port = self.address.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS)

    def raw(self, content: bytes) -> bytes:
        """What comes back for bytes as they are, until the server closes or says no more."""
        with self.connect() as connection:
            connection.sendall(content)
            return all_of(connection)

    def engine_pid(self) -> int:
        """Of the only one, or of any."""
        return self.engine_pids()[0]

    def engine_pids(self) -> list[int]:
        """Of all that run."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "-f", "process.host|tests.cradle"],
            capture_output=True,
            check=False,
        )
        assert found.returncode in (0, 1), found.stderr  # 1: none runs at this moment
        return [int(pid) for pid in found.stdout.split() if not gone(int(pid))]


@contextmanager
def running(*words: str, open_files: int | None = None, **variables: str) -> Iterator[Server]:
    """A server process, at most with so many open files; ended with all that belongs to it."""
    held = [] if open_files is None else ["prlimit", f"--nofile={open_files}:{open_files}"]
    path = f"{ROOT / 'src'}:{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*held, sys.executable, "-m", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                cwd=ROOT,
            )
        with process:
            try:
                yield Server(process, log)
            finally:
                process.send_signal(signal.SIGKILL)


@contextmanager
def stub_process(*words: str, open_files: int | None = None) -> Iterator[Server]:
    """The process around the stub engine; in a run of the whole suite a fork that starts warm."""
    if not starts_warm() or open_files is not None or len(words) > NUM_WORDS:
        with running("tests.serve.http.run_stub_server", *words, open_files=open_files) as server:
            yield server
        return
    with forked("tests.serve.http.run_stub_server:serve_warm", *words) as server:
        yield server


@contextmanager
def serving(model: Path, *words: str, **variables: str) -> Iterator[Server]:
    """`ridgeline serve MODEL …`; in a run of the whole suite a fork, and so is its engine."""
    start = (
        partial(forked, "tests.serve.http.warm_servers:serve")
        if starts_warm()
        else partial(running, "ridgeline.cli.main", "serve")
    )
    with start(str(model), *words, **variables) as server:
        yield server


def starts_warm() -> bool:
    """A few files alone would wait longer for the cradle than for their servers."""
    return "PYTEST_XDIST_WORKER" in os.environ


@contextmanager
def forked(function: str, *words: str, **variables: str) -> Iterator[Server]:
    """A server's process out of the cradle, which calls a function with the words."""
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("rb") as nothing:
        log = Path(folder) / "log"
        reading, writing = os.pipe()
        with log.open("wb") as errors, os.fdopen(reading, "rb") as stdout:
            pid = cradle().bear_on(
                (nothing.fileno(), writing, errors.fileno()),
                function,
                [list(words)],
                environment={**os.environ, "OMP_NUM_THREADS": "1", **variables},
                folder=ROOT,
            )
            os.close(writing)
            process = Child(pid, stdout)
            try:
                yield Server(process, log)
            finally:
                process.kill()
                process.wait()


@contextmanager
def stub_server(
    model: Path,
    *,
    replicas: int = 1,
    scaling: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    limits: dict[str, float] | None = None,
    open_files: int | None = None,
    **settings: Any,
) -> Iterator[Server]:
    """The real server around the stub engine."""
    given = {"model_name": "library", "port": 0, **settings}
    words = [str(model), json.dumps(given), json.dumps(config or {}), str(replicas)]
    words += [json.dumps(scaling), *([json.dumps(limits)] if limits else [])]
    with stub_process(*words, open_files=open_files) as server:
        server.wait_until_ready()
        yield server


def all_of(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def statuses(answers: bytes) -> list[int]:
    """Of several responses one behind the other."""
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def post(body: Any, *, head: bytes = b"") -> bytes:
    """A request for a completion, byte by byte."""
    content = json.dumps(body).encode()
    length = b"Content-Length: %d\r\n\r\n" % len(content)
    return POST + head + length + content


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def gone(pid: int) -> bool:
    """Whether a process has ended, buried or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def until(happened: Callable[[], Any], what: str) -> Any:
    """Wait for something, up to a deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := happened()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
    return found


def sse(response: httpx.Response) -> list[Any]:
    """The documents of a stream; its last line must be [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
