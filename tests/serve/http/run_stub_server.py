"""The real server around the stub engine.

`python -m tests.serve.http.run_stub_server MODEL SETTINGS CONFIG REPLICAS SCALING [LIMITS]`

MODEL may be a file of several models, which all have the stub's engine.

LIMITS are constants of `serve/http/connection.py`: a test does not wait for a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ridgeline.batching.scaling.settings import Scaling
from ridgeline.errors import RidgelineError
from ridgeline.records.served_models import read_served_models
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http import connection

FACTORY = "tests.serve.stub_engine:StubEngine"


def say_ready(address: str, _: object) -> None:
    sys.stdout.write(address + "\n")
    sys.stdout.flush()


def serve(words: list[str]) -> int:
    """In the server's process: its exit code."""
    model, settings, config, replicas, scaling, *limits = words
    for name, value in msgspec.json.decode(limits[0]).items() if limits else ():
        assert hasattr(connection, name)
        setattr(connection, name, value)
    # Behind that: who imports a limit gets ours.
    from ridgeline.serve.http.server import ModelBeside, run_server
    from ridgeline.serve.http.settings import ServerSettings

    given = msgspec.json.decode(settings)
    several = read_served_models(Path(model)) if model.endswith(".toml") else None
    tables = [{"model": model}] if several is None else list(several.models)
    configs = [
        msgspec.convert({"model": one["model"], **msgspec.json.decode(config)}, EngineConfig)
        for one in tables
    ]
    called = [msgspec.convert(given, ServerSettings)]
    if several is not None:
        called = [
            msgspec.convert(given | {"model_name": one["name"]}, ServerSettings) for one in tables
        ]
    try:
        run_server(
            configs[0],
            called[0],
            on_ready=say_ready,
            replicas=int(replicas),
            scaling=msgspec.convert(msgspec.json.decode(scaling), Scaling | None),
            factory=FACTORY,
            beside=[
                ModelBeside(config=config, settings=settings)
                for config, settings in zip(configs[1:], called[1:], strict=True)
            ],
            pipelines=() if several is None else several.pipelines,
        )
    except RidgelineError as error:
        sys.stderr.write(f"ridgeline: {error}\n")
        return error.exit_code
    return 0


def serve_warm(words: list[str]) -> None:
    """In a fork of the cradle."""
    from tests.serve.http.warm_servers import fork_engines

    fork_engines()
    sys.exit(serve(words))


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:]))
