"""Where a script's loaders are intercepted: made, asked for an iterator, waited for.

What is replaced for it stands with its reason in `ridgeline/patches.toml`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.fetch_times import time_fetches
from ridgeline.measure.child.guard import attempt, guarded
from ridgeline.measure.child.inputs import tensor_bytes
from ridgeline.measure.child.sites import user_site
from ridgeline.patches import patch

if TYPE_CHECKING:
    from ridgeline.measure.child.agent import Agent


class LoaderHooks:
    """Tells an agent's clock and what it watches of every loader."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def install(self) -> None:
        """Patch torch, once per process."""
        patch("torch.utils.data.dataloader:DataLoader.__init__", self._around_construction)
        patch("torch.utils.data.dataloader:DataLoader.__iter__", self._around_start)
        patch("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", self._around_fetch)
        time_fetches(self._agent.watched.fetch_times)

    def _around_construction(self, original: Callable[..., None]) -> Callable[..., None]:
        agent, made = self._agent, self._made
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            if agent.points.on_loader:
                args, kwargs = attempt(edited, loader, args, kwargs, otherwise=(args, kwargs))
            original(loader, *args, **kwargs)
            made(loader)

        def edited(loader: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
            bound = signature.bind(loader, *args, **kwargs)
            wanted = {k: v for k, v in bound.arguments.items() if k != "self"}
            for callback in agent.points.on_loader:
                changed = dict(wanted)
                agent.points.call(callback, changed)
                if not agent.points.has_failed(callback):
                    wanted = changed
            return (), wanted

        return init

    def _around_start(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent, begun = self._agent, self._begun

        @functools.wraps(original)
        def iterate(loader: Any) -> Any:
            for prepare in agent.points.before_loader:
                agent.points.call(prepare, loader)
            started = perf_counter()
            with agent.phase("data"):
                iterator = original(loader)
            begun(loader, iterator, perf_counter() - started)
            for callback in agent.points.wrap_loader:
                iterator = agent.points.call(callback, loader, iterator, otherwise=iterator)
            return iterator

        return iterate

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        agent, fetching, fetched = self._agent, self._fetching, self._fetched

        @functools.wraps(original)
        def fetch(iterator: Any) -> Any:
            with fetching(iterator):
                batch = original(iterator)
            for callback in agent.points.on_batch:
                batch = agent.points.call(callback, batch, otherwise=batch)
            fetched(iterator, batch)
            return batch

        return fetch

    @guarded()
    def _made(self, loader: Any) -> None:
        if self._agent.active:
            self._agent.watched.loader_made(loader, user_site())

    @guarded()
    def _begun(self, loader: Any, iterator: Any, seconds: float) -> None:
        if self._agent.is_mine():
            self._agent.inputs.begins_epoch = True
            self._agent.watched.loader_started(loader, iterator, seconds)

    @contextlib.contextmanager
    def _fetching(self, iterator: Any) -> Iterator[None]:
        """The loop waits for a batch."""
        if not self._agent.is_mine():
            yield
            return
        started = perf_counter()
        with self._agent.phase("data"):
            yield
        self._waited(iterator, perf_counter() - started)

    @guarded()
    def _waited(self, iterator: Any, seconds: float) -> None:
        watch = self._agent.watched.loader_of(iterator)
        if watch is not None:
            watch.waited(seconds)

    @guarded()
    def _fetched(self, iterator: Any, batch: Any) -> None:
        """The loop got a batch."""
        watch = self._agent.watched.loader_of(iterator)
        if watch is not None and self._agent.is_mine() and watch.batch_bytes == 0:
            watch.batch_bytes = tensor_bytes(batch)
