"""Nothing is sent while a script is measured, whatever the script's own calls say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from ridgeline.measure.guard import offline

LIBRARIES = tomllib.loads(Path(offline.__file__).with_name("offline.toml").read_text())["library"]
HELD = [held for library in LIBRARIES for held in library.get("held", ())]
LOOP = """
import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    AFTER
"""


def doctor(folder: Path, script: str, **environment: str) -> dict[str, object]:
    """What `doctor` noted of the side effects of a script that must come to its end."""
    (folder / "train.py").write_text(script)
    words = ["-m", "ridgeline.cli.main", "doctor", "--steps", "8", "--json", "--", "train.py"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    noted: dict[str, object] = json.loads(done.stdout)["profile"]["side_effects"]
    return noted


def make_library(folder: Path, call: str, argument: str) -> None:
    """A module with the function, or the method of a class, that `call` names."""
    module, _, name = call.partition(":")
    path = folder.joinpath(*module.split("."), "__init__.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.parents[1 : len(module.split("."))]:
        (parent / "__init__.py").touch()
    owner, _, last = name.rpartition(".")
    if owner:
        code = f"class {owner}:\n    def {last}(self, {argument}=None):\n"
        code += f"        self.told = {argument}\n"
    else:
        code = f"def {last}({argument}=None):\n    return {argument}\n"
    with path.open("a") as file:
        file.write(code)


def call_of(call: str, argument: str, given: object) -> str:
    """Python for what a call was told in the end."""
    module, _, name = call.partition(":")
    owner, _, last = name.rpartition(".")
    if not owner:
        return f"{module}.{last}({argument}={given!r})"
    if last == "__init__":
        return f"{module}.{owner}({argument}={given!r}).told"
    return f"told({module}.{owner}(), {last!r}, {argument}={given!r})"


@pytest.mark.slow
def test_every_library_is_kept_offline_against_what_the_script_says(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    lines = [
        "def told(one, name, **kwargs):",
        "    getattr(one, name)(**kwargs)",
        "    return one.told",
        "",
    ]
    for held in HELD:
        make_library(libraries, held["call"], held["argument"])
        top, _, _ = held["call"].partition(":")[0].partition(".")
        lines += [f"import {top}", f"import {held['call'].partition(':')[0]}"]
        got = call_of(held["call"], held["argument"], "online")
        wanted = held["value"]
        if isinstance(wanted, str) and "{folder}" in wanted:
            lines.append(f"assert {got}.startswith({wanted.partition('{')[0]!r}), {got}")
        else:
            lines.append(f"assert {got} == {wanted!r}, {got}")
        for left in held.get("leaves", ()):
            got = call_of(held["call"], held["argument"], left)
            lines.append(f"assert {got} == {left!r}, {got}")
    script = "\n".join(lines) + LOOP.replace("AFTER", "")
    noted = doctor(tmp_path, script, PYTHONPATH=str(libraries))
    assert noted["offline"] == sorted({held["call"].split(":")[0].split(".")[0] for held in HELD})


class Counting(BaseHTTPRequestHandler):
    """A server of one's own that writes down who asks."""

    asked: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.asked.append(self.path)
        self.send_error(500)

    do_GET = do_POST  # noqa: N815 - the name that is called

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Counting.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_run_that_asks_wandb_to_be_online_stays_offline(tmp_path: Path, server: str) -> None:
    script = "import wandb\n\nrun = wandb.init(project='p', mode='online')\n" + LOOP.replace(
        "AFTER", 'wandb.log({"loss": loss.item()})'
    )
    noted = doctor(
        tmp_path,
        script,
        WANDB_BASE_URL=server,
        WANDB_API_KEY="0" * 40,
        WANDB_ERROR_REPORTING="false",
    )
    assert noted["offline"] == ["wandb"]
    assert not Counting.asked
    assert not list(tmp_path.glob("wandb*"))
