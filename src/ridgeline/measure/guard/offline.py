"""Nothing that a measured run logs or uploads leaves the machine; what it downloads comes."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ridgeline.measure.guard.on_import import after_import
from ridgeline.patches import UPLOADS, patch

SEEN_NAME = "offline"
"""In the session's folder: the libraries that were imported, a line each."""
_HUB = "huggingface_hub"


@functools.cache
def _libraries() -> list[dict[str, Any]]:
    text = Path(__file__).with_name("offline.toml").read_text()
    found: list[dict[str, Any]] = tomllib.loads(text)["library"]
    return found


def offline_variables(folder: Path) -> dict[str, str]:
    """What to set in the environment of a measured script."""
    return {
        name: value.format(folder=folder)
        for library in _libraries()
        for name, value in library["variables"].items()
    }


def stay_at_home(session: Path) -> None:
    """In the script's process: uploads to the hub do nothing; note who is kept offline."""
    for library in _libraries():
        module = library["module"]
        after_import(module, functools.partial(_note, session, module))
        for held in library.get("held", ()):
            after_import(module, functools.partial(_hold, session, **held))

    def note() -> None:
        _note(session, _HUB)

    def quieten() -> None:
        for name in UPLOADS:
            make = _no_repository if name == "create_repo" else _no_upload
            patch(f"{_HUB}.hf_api:HfApi.{name}", functools.partial(make, noted=note))
        for name in UPLOADS:  # methods of one object, taken before
            patch(f"{_HUB}.hf_api:{name}", lambda old: getattr(old.__self__, old.__name__))

    after_import(f"{_HUB}.hf_api", quieten)


def _hold(
    session: Path, call: str, argument: str, value: object, leaves: Sequence[object] = ()
) -> None:
    """From now on `call` gets `value` for `argument`, unless the script gives one of `leaves`."""
    if isinstance(value, str):
        value = value.format(folder=session)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def held(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            if given.arguments.get(argument) not in leaves:
                given.arguments[argument] = value
            return original(*given.args, **given.kwargs)

        return held

    patch(call, make)


def seen(session: Path) -> list[str]:
    """Which libraries were kept offline."""
    path = session / SEEN_NAME
    return sorted(set(path.read_text().split())) if path.exists() else []


def _note(session: Path, library: str) -> None:
    with (session / SEEN_NAME).open("a") as file:
        file.write(f"{library}\n")


def _no_upload(original: Callable[..., Any], *, noted: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def upload(self: Any, *_args: Any, run_as_future: bool = False, **kwargs: Any) -> Any:
        noted()
        from huggingface_hub.hf_api import CommitInfo

        done = CommitInfo(
            commit_url=f"{self.endpoint}/{kwargs.get('repo_id', 'measured/run')}/commit/measured",
            commit_message=kwargs.get("commit_message") or "not uploaded while it is measured",
            commit_description="",
            oid="measured",
        )
        if not run_as_future:
            return done
        future: Future[Any] = Future()
        future.set_result(done)
        return future

    return upload


def _no_repository(
    original: Callable[..., Any], *, noted: Callable[[], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_repo(self: Any, repo_id: str, *_args: Any, **_kwargs: Any) -> Any:
        noted()
        from huggingface_hub.hf_api import RepoUrl

        name = repo_id if "/" in repo_id else f"measured/{repo_id}"
        return RepoUrl(f"{self.endpoint}/{name}", endpoint=self.endpoint)

    return create_repo
