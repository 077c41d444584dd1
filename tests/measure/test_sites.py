"""Which files are the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ridgeline
from ridgeline.measure.child import sites
from ridgeline.measure.child.sites import is_user_file, project_root

HERE = Path(ridgeline.__file__).parents[1]


@pytest.mark.parametrize(
    "path",
    [
        os.__file__,
        pytest.__file__,
        "/opt/base/lib/python3.11/site-packages/torch/optim/adam.py",
        "/usr/lib/python3/dist-packages/torch/optim/adam.py",
        "/nix/store/abc-python3.11-torch/lib/python3.11/torch/optim/adam.py",
        "/home/me/.cache/bazel/_bazel_me/1/external/pip_torch/torch/optim/adam.py",
        "/srv/train.runfiles/rules_python~0.3~pip~torch/torch/optim/adam.py",
        "<string>",
        "<frozen importlib._bootstrap>",
        "",
    ],
)
def test_what_is_installed_is_not_the_users_whatever_environment_it_is_in(path: str) -> None:
    assert not is_user_file(path)


@pytest.mark.parametrize("name", ["train.py", "app.pyz/train.py", "ipykernel_12/34.py"])
def test_a_script_is_the_users(tmp_path: Path, name: str) -> None:
    assert is_user_file(str(tmp_path / name))


def test_what_a_library_writes_into_the_temporary_folder_is_not_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sites, "_TEMPORARY", f"{tmp_path}{os.sep}")
    assert not is_user_file(str(tmp_path / "generated_conv_propagate_x7.py"))
    assert not is_user_file(str(tmp_path / "torchinductor_me/ab/cabin.py"))
    assert is_user_file(str(tmp_path / "ipykernel_12/35.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_user_file(str(tmp_path / "parts.py"))


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


def test_of_two_checkouts_the_one_that_is_run_is_the_users(tmp_path: Path) -> None:
    """Each question is asked of a process of its own: its main script decides."""
    mine = made(tmp_path / "mine", "pyproject.toml", "src/pkg/model.py", "vendor/torch/__init__.py")
    made(mine, "vendor/einops/layers.py")
    theirs = made(tmp_path / "theirs", ".git/HEAD", "src/lib/trainer.py")
    target = made(tmp_path / "target", "lib-1.0.dist-info/METADATA", "lib/core.py")
    own = made(tmp_path / "own_modules", "helpers/losses.py")
    script = mine / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "import json, sys\n"
        f"sys.path.append({str(HERE)!r})\n"
        "import torch\n"
        "from ridgeline.measure.child.sites import is_user_file\n"
        "print(json.dumps({path: is_user_file(path) for path in sys.argv[1:]}))\n"
    )
    asked = {
        str(script): True,
        str(mine / "src/pkg/model.py"): True,
        str(mine / "vendor/einops/layers.py"): False,
        str(theirs / "src/lib/trainer.py"): False,
        str(target / "lib/core.py"): False,
        str(own / "helpers/losses.py"): True,
    }
    variables = dict(os.environ)
    variables["PYTHONPATH"] = os.pathsep.join(map(str, (mine / "vendor", target, own)))
    answered = subprocess.run(
        [sys.executable, str(script), *asked],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answered.stdout) == asked


def test_a_project_begins_at_its_repository_or_else_its_nearest_mark(tmp_path: Path) -> None:
    made(tmp_path, "repo/.git/HEAD", "repo/pkg/pyproject.toml", "plain/setup.py", "plain/a/b.py")
    assert project_root(str(tmp_path / "repo/pkg")) == str(tmp_path / "repo")
    assert project_root(str(tmp_path / "plain/a")) == str(tmp_path / "plain")
