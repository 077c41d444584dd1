"""`ridgeline studio` opens the page where limits and trade-offs can be moved by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.show import Json

PORT = 8765


def studio(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE…", help="What commands wrote with --json, and traces."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that others reach needs --token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen on; 0 is any free one.", min=0, max=65535)
    ] = PORT,
    token: Annotated[
        str | None, typer.Option(metavar="WORD", help="The word that a browser must know.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve explorers, drills and the files in a browser until Ctrl-C; nothing leaves the machine.

    One line on stdout says the address.
    """
    from ridgeline.cli.show import print_json, say
    from ridgeline.studio.server import run_studio

    def say_ready(address: str) -> None:
        if json:
            print_json({"address": address})
        else:
            say(f"studio at {address} (Ctrl-C ends it)")

    run_studio(files or [], host=host, port=port, token=token, on_ready=say_ready)
