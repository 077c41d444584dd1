"""Engine processes that start, hang, die and come back."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http.servers import gone, until
from tokenizers import Tokenizer

from ridgeline.errors import InputError, RidgelineError
from ridgeline.hardware import core_pressure
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Sampling, Submit
from ridgeline.serve.process import supervisor as supervising
from ridgeline.serve.process.client import RequestRefused, stream
from ridgeline.serve.process.supervisor import EngineLost, Supervisor

ROOT = Path(__file__).parents[3]
MODEL = str(ROOT / "examples/models/library")
FACTORY = "tests.serve.stub_engine:StubEngine"
TOKENIZER = Tokenizer.from_file(f"{MODEL}/tokenizer.json")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")


def run(scene: Callable[[Supervisor], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        config = EngineConfig(model=MODEL, **options.pop("config", {}))
        supervisor = Supervisor(config, FACTORY, **options)
        try:
            async with asyncio.timeout(120):
                await scene(supervisor)
        finally:
            await supervisor.stop()

    asyncio.run(whole())


def environment_of(pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return {name: value for name, _, value in (word.partition("=") for word in words)}


async def ask(supervisor: Supervisor, request_id: str = "a", said: str = "x") -> str:
    prompt = tuple(TOKENIZER.encode(said, add_special_tokens=False).ids)
    submit = Submit(id=request_id, prompt=prompt, sampling=Sampling(max_tokens=9))
    return "".join([delta.text async for delta in stream(supervisor.client, submit)])


@pytest.mark.parametrize(("waited", "policy"), [("63.20", "passive"), ("4.00", None)])
def test_threads_of_an_engine_sleep_where_others_want_the_cores(
    waited: str, policy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*core_pressure.WAIT_VARIABLES, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cpu").write_text(f"some avg10={waited} avg60=12.00 avg300=3.00 total=9\n")
    monkeypatch.setattr(core_pressure, "PRESSURE", tmp_path / "cpu")

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        found.append(supervisor.pid and environment_of(supervisor.pid).get("OMP_WAIT_POLICY"))

    found: list[str | int | None] = []
    run(scene)
    assert found == [policy]


@pytest.mark.sweep(every=2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_is_started_again(number: signal.Signals) -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        assert await ask(supervisor) == " one two three"
        first = supervisor.pid
        assert first is not None
        watching = asyncio.create_task(supervisor.watch())
        os.kill(first, number)
        await supervisor.client.down.wait()
        with pytest.raises(RequestRefused):
            await ask(supervisor)
        await supervisor.client.up.wait()
        assert supervisor.pid != first
        assert await ask(supervisor) == " one two three"
        watching.cancel()

    # A crowded machine keeps a sound engine silent for a while.
    run(scene, **({"silence_seconds": 3.0} if number == signal.SIGSTOP else {}))


@pytest.mark.sweep("13-InputError-choose another", "15-RidgelineError-signal 9 before it was up")
@pytest.mark.parametrize(
    ("sequences", "kind", "message"),
    [
        (13, InputError, "choose another"),
        (14, RidgelineError, "RuntimeError: a bug over two lines"),
        (15, RidgelineError, "signal 9 before it was up"),
    ],
)
def test_a_start_that_fails_says_why_and_nothing_else(
    sequences: int,
    kind: type[RidgelineError],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scene(supervisor: Supervisor) -> None:
        with pytest.raises(kind, match=message):
            await supervisor.start()

    run(scene, config={"max_sequences": sequences})
    assert "a library's farewell" not in capsys.readouterr().err


def test_a_start_that_is_given_up_at_any_moment_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))

    async def scene(supervisor: Supervisor) -> None:
        for turns in (2, 4, 8, 16):
            start = asyncio.create_task(supervisor.start())
            for _ in range(turns):
                await asyncio.sleep(0)
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
            await supervisor.stop()

    run(scene)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_futile_starts_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "FUTILE_STARTS", 2)

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        supervisor._factory = "tests.serve.stub_engine:Nothing"
        assert supervisor.pid is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        with pytest.raises(EngineLost, match=r"signal 9.*did not start again.*Nothing"):
            await supervisor.watch()

    run(scene)


@asynccontextmanager
async def killed(supervisor: Supervisor) -> AsyncIterator[None]:
    """Kill the engine and wait for the next one."""
    watching = asyncio.create_task(supervisor.watch())
    pid = supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await supervisor.client.down.wait()
    await supervisor.client.up.wait()
    assert supervisor.pid != pid
    yield
    watching.cancel()


def test_an_engine_comes_back_with_the_adapters_that_it_had(tmp_path: Path) -> None:
    first, second = tmp_path / "first.adapter", tmp_path / "second.adapter"
    first.touch()
    second.touch()

    async def scene(supervisor: Supervisor) -> None:
        client = supervisor.client
        await supervisor.start()
        await client.load_adapter("second", str(second))
        await client.load_adapter("third", str(second))
        await client.unload_adapter("third")
        async with killed(supervisor):
            assert client.ready is not None
            assert client.ready.adapters == ("first", "second")

    run(scene, config={"adapters": {"first": str(first)}})


@pytest.mark.slow
def test_an_adapter_that_has_gone_does_not_keep_the_engine_from_coming_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first.adapter", tmp_path / "second.adapter"
    first.touch()
    second.touch()

    async def scene(supervisor: Supervisor) -> None:
        client = supervisor.client
        await supervisor.start()
        await client.load_adapter("second", str(second))
        first.unlink()
        async with killed(supervisor):
            while list(client.adapters) != ["second"]:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.01)
            while client.stats is None or client.stats.adapters != ("second",):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    run(scene, config={"adapters": {"first": str(first)}})
    assert "adapter not loaded again" in caplog.text


def test_an_adapter_that_was_never_there_is_the_users_mistake(tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        with pytest.raises(InputError, match=r"no adapter_config\.json"):
            await supervisor.start()

    run(scene, config={"adapters": {"first": str(tmp_path / "first.adapter")}})


def test_stopping_ends_the_process() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        pid = supervisor.pid
        assert pid is not None
        await supervisor.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(scene)


SERVER = """
import asyncio, sys
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.process.supervisor import Supervisor
async def main():
    supervisor = Supervisor(EngineConfig(model=sys.argv[1]), sys.argv[2])
    await supervisor.start()
    print(supervisor.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def test_an_engine_that_is_stopped_does_not_outlive_a_server_that_is_killed() -> None:
    """It reads no socket, so only the kernel can end it."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, MODEL, FACTORY], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        engine = int(server.stdout.readline())
        os.kill(engine, signal.SIGSTOP)
        server.kill()
    until(lambda: gone(engine), "the engine's end")


def test_a_log_that_cannot_be_written_does_not_stop_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would wait for ever for room in a pipe that nobody empties."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        monkeypatch.setattr(sys, "stderr", Full())
        assert await ask(supervisor, said="TALK") == " one two three"

    run(scene)
