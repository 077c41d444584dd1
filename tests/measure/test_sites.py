"""Which files are the user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.measure.child.sites import is_user_file


@pytest.mark.parametrize(
    "path",
    [
        os.__file__,
        pytest.__file__,
        "/opt/base/lib/python3.11/site-packages/torch/optim/adam.py",
        "/usr/lib/python3/dist-packages/torch/optim/adam.py",
        "<string>",
    ],
)
def test_what_is_installed_is_not_the_users_whatever_environment_it_is_in(path: str) -> None:
    assert not is_user_file(path)


def test_a_script_is_the_users(tmp_path: Path) -> None:
    assert is_user_file(str(tmp_path / "train.py"))
