"""The process of the studio: it listens, says where, and ends at a signal."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra
from ridgeline.serve.process.listener import listening
from ridgeline.studio.files import name_files

SHORTEST_TOKEN = 8


def run_studio(
    paths: Sequence[Path],
    *,
    host: str,
    port: int,
    token: str | None,
    on_ready: Callable[[str], None],
) -> None:
    """Serve the pages until a signal comes.

    Raises:
        InputError: The address cannot be had, or is open to others and has no token.
    """
    try:
        import uvicorn

        from ridgeline.studio.app import create_app
        from ridgeline.studio.guard import Door, is_local
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("uvicorn", "starlette"):
            raise
        raise MissingExtra(error.name or "starlette", "studio") from None
    if token is None and not is_local(host):
        example = secrets.token_urlsafe(12)
        raise InputError(
            f"--host {host} lets others in: add --token, with a word of your own ({example})"
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii()):
        raise InputError(f"--token: give {SHORTEST_TOKEN} plain letters or more")
    with listening(host, port) as listener:
        app = create_app(name_files(paths), Door(host, token))
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        name = f"[{host}]" if ":" in host else host
        entry = f"?token={token}" if token else ""
        listener.listen(256)
        on_ready(f"http://{name}:{listener.getsockname()[1]}/{entry}")
        uvicorn.Server(config).run(sockets=[listener])
