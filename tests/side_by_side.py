"""`pytest --forks N`: one process imports what all tests need, then N forks of it share the files.

A worker of the usual kind imports torch, transformers and the like, and collects the whole suite:
45 seconds of a core, for each of them. Here the process that was started imports them once, finds
the files, and forks; a fork asks for a file, collects it and runs it, and asks for the next before
the last test of the one before, so that what several files share is kept. Files that took long the
last time (pytest's cache knows) or are large are handed out first.

What is marked `alone` is left; one more fork, with nothing beside it, runs it at the end. A fork
that dies is a failure of the test that it was at, and another takes its place.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import os
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import collect_one_node
from tests.cradle import cradle, quiet

IMPORTS = (
    "anthropic",
    "compressed_tensors.compressors",
    "fastapi",
    "gguf",
    "kubernetes.config",
    "libcst.matchers",
    "networkx",
    "onnx",
    "onnxscript",
    "openai",
    "pandas",
    "peft",
    "playwright.sync_api",
    "pyarrow.parquet",
    "ridgeline.compress.images.material",
    "ridgeline.diagnose.doctor",
    "ridgeline.drills.bank",
    "ridgeline.serve.engine.engine",
    "ridgeline.serve.http.server",
    "ridgeline.train.build",
    "ridgeline.tune.patch",
    "schemathesis",
    "sklearn.datasets",
    "tensorboard",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)
"""The largest imports of the whole suite, each at least a tenth of a second."""
TOGETHER = (
    "tests/test_house.py",
    "tests/test_dead_code.py",
    "tests/test_patches.py",
    "tests/cli/test_flags_in_messages.py",
)
"""They look at how the house is written: one fork reads it, for all of them."""
_SECONDS = "side-by-side/seconds"
_BYTES_PER_SECOND = 4000
"""Of source, for files of which the cache knows no time."""


class SideBySide:
    """The plugin, in the process that was started and in its forks."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._units: list[pytest.Collector | pytest.Item] = []
        self._forks: dict[Connection, Fork] = {}
        self._born = itertools.count()
        self._alone: list[int] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._finding = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Collector | pytest.Item]) -> None:
        """Folders are taken before anybody looks for marks on them."""
        if self._finding:
            for node in items:
                self._units += _files(node)
            items.clear()

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Find the files, without importing them, in the order in which they are handed out."""
        self._finding = True
        session.perform_collect(genitems=False)
        self._finding = False
        known = self._known_seconds()

        def expected(unit: pytest.Collector | pytest.Item) -> float:
            return known.get(unit.nodeid, unit.path.stat().st_size / _BYTES_PER_SECOND)

        self._units.sort(key=expected, reverse=True)
        return True

    def _known_seconds(self) -> dict[str, float]:
        cache = getattr(self._config, "cache", None)
        return {} if cache is None else dict(cache.get(_SECONDS, {}))

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork, hand out, and report what the forks say."""
        self._config.pluginmanager.getplugin("terminalreporter")._show_progress_info = False
        if self._config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            self._import_all()
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all
        session.testscollected = 0
        together = [n for n, unit in enumerate(self._units) if unit.nodeid in TOGETHER]
        others = ([n] for n in range(len(self._units)) if n not in together)
        queue = [*([together] if together else []), *others]
        try:
            self._serve(session, queue, min(self._config.option.forks, len(queue)), alone=False)
            alone = [[unit] for unit in sorted(self._alone)]
            self._serve(session, alone, min(1, len(alone)), alone=True)
        finally:
            for connection, fork in self._forks.items():
                connection.close()
                fork.end()
        if getattr(self._config, "cache", None) is not None:
            self._config.cache.set(_SECONDS, self._known_seconds() | self._seconds)
        return True

    def _import_all(self) -> None:
        cradle()  # imports its own meanwhile
        gc.disable()
        with quiet(Path(os.devnull)):
            for name in IMPORTS:
                importlib.import_module(name)
        from hypothesis.internal.conjecture.providers import _get_local_constants

        _get_local_constants()  # it reads every module of the house, in every fork otherwise
        self._config.pluginmanager.getplugin("capturemanager").read_global_capture()

    def _serve(
        self, session: pytest.Session, queue: list[list[int]], num_forks: int, *, alone: bool
    ) -> None:
        queue.reverse()
        gc.collect()
        gc.freeze()
        for _ in range(num_forks):
            self._fork(session, alone=alone)
        while self._forks:
            for connection in wait(list(self._forks)):
                assert isinstance(connection, Connection)
                try:
                    message = connection.recv()
                except EOFError:
                    self._bury(connection)
                    if queue:
                        self._fork(session, alone=alone)
                else:
                    self._heed(connection, message, queue)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)

    def _heed(
        self, connection: Connection, message: tuple[Any, ...], queue: list[list[int]]
    ) -> None:
        fork, hook = self._forks[connection], self._config.hook
        match message:
            case ("next",):
                connection.send(queue.pop() if queue else None)
            case ("alone", int(unit)):
                self._alone.append(unit)
            case ("test", str(nodeid), tuple(location)):
                fork.test = (nodeid, location)
            case ("broken", str(said)):
                fork.said = said
            case ("report", dict(data)):
                report = hook.pytest_report_from_serializable(config=self._config, data=data)
                if isinstance(report, pytest.TestReport):
                    self._count(report)
                    hook.pytest_runtest_logreport(report=report)
                else:
                    hook.pytest_collectreport(report=report)
            case ("end",):
                fork.is_done = True

    def _count(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._config.pluginmanager.getplugin("session").testscollected += 1
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def _bury(self, connection: Connection) -> None:
        fork = self._forks.pop(connection)
        status = fork.end()
        if fork.is_done:
            return
        nodeid, location = fork.test
        said = f"the fork that ran it died ({status}); what follows in its file was not run"
        said += fork.said
        self._config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(nodeid, location, {}, "failed", said, "call")
        )

    def _fork(self, session: pytest.Session, *, alone: bool) -> None:
        number = next(self._born)
        ours, theirs = Pipe()
        pid = os.fork()
        if pid:
            theirs.close()
            self._forks[ours] = Fork(pid)
            return
        code = 1
        try:
            for other in [ours, *self._forks]:
                other.close()
            Worker(self._config, session, self._units, theirs).run(number, alone=alone)
            code = 0
        except BaseException:  # whatever it is, the process that was started tells of it
            theirs.send(("broken", "\n" + traceback.format_exc()))
        finally:
            os._exit(code)


def _files(node: pytest.Collector | pytest.Item) -> Iterator[pytest.Collector | pytest.Item]:
    if isinstance(node, pytest.File | pytest.Item) or not isinstance(
        node, pytest.Directory | pytest.Session
    ):
        yield node
        return
    report = collect_one_node(node)
    if not report.passed:
        node.ihook.pytest_collectreport(report=report)
        return
    for part in report.result:
        yield from _files(part)


class Fork:
    """A worker, as the process that was started sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.test = ("before the first test", ("", None, ""))
        """The test that it is at: its id and location."""
        self.said = ""
        """Why it broke, where it could still say."""
        self.is_done = False

    def end(self) -> str:
        """See it end, for good or for bad, and say how it did."""
        deadline = time.monotonic() + 5
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return f"exit code {code}" if code >= 0 else f"signal {-code}"
            if time.monotonic() > deadline:
                os.kill(self._pid, 9)
            time.sleep(0.01)


class Worker:
    """What a fork does."""

    def __init__(
        self,
        config: pytest.Config,
        session: pytest.Session,
        units: list[pytest.Collector | pytest.Item],
        connection: Connection,
    ) -> None:
        self._config = config
        self._session = session
        self._units = units
        self._connection = connection

    def run(self, number: int, *, alone: bool) -> None:
        """Ask for files and run them until there is none left."""
        self._settle(number, alone=alone)
        items = self._items(alone=alone)
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            self._connection.send(("test", item.nodeid, item.location))
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        self._connection.send(("end",))
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()

    def _settle(self, number: int, *, alone: bool) -> None:
        """Be a worker of its own: its folder, its captured output, its cores, its words."""
        plugins = self._config.pluginmanager
        if cradle.cache_info().currsize:  # a connection is for one
            cradle().leave()
            cradle.cache_clear()
        os.environ["PYTEST_XDIST_WORKER"] = f"fork{number}"
        if alone:  # all cores are its own
            import torch

            for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
                os.environ.pop(name, None)
            torch.set_num_threads(len(os.sched_getaffinity(0)))
        factory = self._config._tmp_path_factory  # type: ignore[attr-defined]
        factory._basetemp = factory.getbasetemp() / f"fork{number}"
        factory._basetemp.mkdir()
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        plugins.getplugin("terminalreporter")._tw._file = Path(os.devnull).open("w")  # noqa: SIM115
        plugins.register(_Speaker(self._config, self._connection))

    def _items(self, *, alone: bool) -> Iterator[pytest.Item]:
        while True:
            self._connection.send(("next",))
            units = self._connection.recv()
            if units is None:
                return
            for unit in units:
                yield from self._items_of(unit, alone=alone)

    def _items_of(self, unit: int, *, alone: bool) -> list[pytest.Item]:
        """Collect a file."""
        gc.disable()  # until all of them are there
        items = list(self._session.genitems(self._units[unit]))
        self._config.hook.pytest_collection_modifyitems(
            session=self._session, config=self._config, items=items
        )
        self._session.items += items  # fixtures look there for what is asked of them
        self._config.hook.pytest_collection_finish(session=self._session)
        chosen = [one for one in items if bool(one.get_closest_marker("alone")) == alone]
        if len(chosen) < len(items) and not alone:
            self._connection.send(("alone", unit))
        return chosen


class _Speaker:
    """Tells the process that was started what happens in a fork."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))
