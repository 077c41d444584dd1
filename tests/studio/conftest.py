"""A studio over some files: asked in this process, or as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.report.records import a_ledger, a_profile, operators

from ridgeline.plan.model_roofline import model_roofline
from ridgeline.studio.app import create_app
from ridgeline.studio.files import name_files
from ridgeline.studio.guard import Door

ADDRESS = "http://127.0.0.1:8765"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files as commands write them, and three that no command wrote."""
    folder = tmp_path_factory.mktemp("written")
    timed = [msgspec.structs.replace(one, shapes="[3072,256],[256,256]") for one in operators()]
    roof = model_roofline("Llama-3-8B", ["h100"])
    contents = {
        "profile.json": msgspec.json.encode(a_profile(operators=[])),
        "run.json": msgspec.json.encode(a_profile(operators=timed)),
        "ledger.json": msgspec.json.encode(a_ledger()),
        "roofline.json": msgspec.json.encode(roof),
        "other.json": b'{"a": 1}',
        "broken.json": b'{"record": "roofline", "model": [',
        "hostile.json": json.dumps(
            {**msgspec.to_builtins(roof), "model": "<script>window.broken = 1</script>"}
        ).encode(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [*(folder / name for name in contents), folder / "missing.json"]


@pytest.fixture(scope="module")
def client(written: list[Path]) -> Iterator[TestClient]:
    """A reader of the studio."""
    app = create_app(name_files(written), Door("127.0.0.1"))
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as found:
        yield found


@pytest.fixture(scope="module")
def studio(written: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a studio that runs as a process of its own, with a state of its own."""
    own = {**os.environ, "RIDGELINE_STATE": str(tmp_path_factory.mktemp("state"))}
    command = [sys.executable, "-m", "ridgeline.cli.main", "studio", "--port", "0", "--json"]
    with subprocess.Popen(
        [*command, *map(str, written)], stdout=subprocess.PIPE, env=own
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        yield json.loads(b"".join(lines))["address"].rstrip("/")
        process.terminate()
        assert process.wait(10) in (0, -15, 130)
