"""What all tests share: threads, hypothesis, representatives of sweeps, scripts that start warm."""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import logging
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.logging import catching_logs as _catching_logs
from hypothesis import HealthCheck, is_hypothesis_test, settings

from ridgeline.hardware.ceilings import Ceilings

if "PYTEST_XDIST_WORKER" in os.environ or any(word.startswith("--forks") for word in sys.argv):
    # Workers share the cores: threads of two teams that wait for each other burn the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A name that is no folder is not looked up: that takes half a minute where there is no network.
os.environ["HF_HUB_OFFLINE"] = "1"
# How long one example takes says something about the machine's other work, not about the code.
settings.register_profile("whole", deadline=None)
# `make test` says the same of the same code, wherever it runs; `make test-all` draws anew.
settings.register_profile("quick", deadline=None, derandomize=True)
settings.load_profile("quick")
SEED = 0
FEWEST_EXAMPLES = 5
SHARE_OF_EXAMPLES = 8


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but the representatives of a sweep, and most examples, to `make test-all`.

    `@pytest.mark.sweep("llama-gptq")` on a parametrised test: of its cases, `make test` runs only
    those with the ids named, with `@pytest.mark.sweep(every=8)` only each eighth; the others become
    slow tests. Property tests try an eighth of their examples, with `--hypothesis-profile whole`
    all of them.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for name, found in cases.items():
        _keep_representatives(name, found)
    for function in {item.function for item in items if isinstance(item, pytest.Function)}:
        if is_hypothesis_test(function):
            _settle_examples(function)


def _keep_representatives(name: str, cases: list[pytest.Item]) -> None:
    marker = cases[0].get_closest_marker("sweep")
    assert marker is not None
    if "every" in marker.kwargs:
        for place, case in enumerate(cases):
            if place % marker.kwargs["every"]:
                case.add_marker("slow")
        return
    kept = set(marker.args)
    ids = {case.nodeid.partition("[")[2].removesuffix("]"): case for case in cases}
    if len(ids) > 1 and not kept <= ids.keys():  # one case alone was asked for by its id
        raise pytest.UsageError(f"{name}: sweep names no case: {', '.join(kept - ids.keys())}")
    for id_, case in ids.items():
        if id_ not in kept:
            case.add_marker("slow")


def _settle_examples(function: Any) -> None:
    """Lower the number that the test was given, and let a slow machine draw at its own speed.

    Hypothesis keeps the settings on the function itself.
    """
    given = function._hypothesis_internal_use_settings
    num = given.max_examples
    if settings.get_current_profile_name() == "quick":
        num = max(min(FEWEST_EXAMPLES, num), num // SHARE_OF_EXAMPLES)
    allowed = [*given.suppress_health_check, HealthCheck.too_slow]
    function._hypothesis_internal_use_settings = settings(
        given, max_examples=num, suppress_health_check=allowed
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--forks", type=int, default=0, help="run files in so many forks, side by side"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Look for no garbage while tests are collected: what is imported stays, and walks cost."""
    if config.option.forks and not config.option.collectonly:
        from tests.side_by_side import SideBySide

        os.environ["PYTEST_XDIST_TESTRUNUID"] = str(os.getpid())  # all forks share one cradle
        config.pluginmanager.register(SideBySide(config))
    _catching_logs.__enter__ = _catch_what_reaches_the_root  # type: ignore[method-assign]
    gc.disable()
    # Libraries complain of what is left at the end, so then Python cleans up as it would.
    atexit.register(gc.unfreeze)


def _catch_what_reaches_the_root(catching: Any) -> Any:
    """What pytest does at the start of each phase of a test, for the root logger alone.

    It would look six times in each test for the 90 loggers, of 800, that keep what they are told
    from the root, and give each of them a handler; no test of ours wants what they are told.
    """
    root = logging.getLogger()
    root.addHandler(catching.handler)
    catching.attached_loggers.append(root)
    if catching.level is not None:
        catching.handler.setLevel(catching.level)
        catching.orig_level = root.level
        root.setLevel(min(root.level, catching.level))
    return catching.handler


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Draw the same random numbers in a test, whichever ones its process has run before."""
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        # Its own `manual_seed` has every idle accelerator keep the stack that it was called from.
        torch.default_generator.manual_seed(SEED)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(SEED)


def pytest_collection_finish() -> None:
    """Spare collections of garbage the walk over everything that is imported by now."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage() -> None:
    """The same for what earlier files imported."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _cores_are_shared() -> None:
    """A command that an earlier file ran in this process took all cores for torch's threads."""
    if "PYTEST_XDIST_WORKER" in os.environ and "torch" in sys.modules:
        import torch

        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    """Scripts start as forks of a process that has imported torch."""
    from tests.warm_scripts import start_warm, start_with_stack_warm

    from ridgeline.measure.live import conductor
    from ridgeline.tune import stack

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor, "start", start_warm)
        patch.setattr(stack, "start", start_with_stack_warm)
        yield


@pytest.fixture(scope="session")
def probed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For `XDG_CACHE_HOME`: what a quick probe finds on this machine, probed once for all workers.

    `progress.json` has what the probe said of its progress. Whoever writes into a cache takes a
    copy.
    """
    from ridgeline.hardware.ceilings import save_ceilings
    from ridgeline.measure.probe import probe

    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / "probed"
    with (root / "probed.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            patch.setenv("XDG_CACHE_HOME", str(folder))
            seen: list[tuple[str, float]] = []
            save_ceilings(probe(lambda what, share: seen.append((what, share)), quick=True))
            (folder / "progress.json").write_text(json.dumps(seen))
    return folder


@pytest.fixture(scope="session")
def probed_ceilings(probed: Path) -> Ceilings:
    """The same as a value."""
    from ridgeline.hardware.ceilings import cached_ceilings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(probed))
        found = cached_ceilings()
    assert found is not None
    return found
