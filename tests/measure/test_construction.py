"""Arguments of constructors, edited while a script runs."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from ridgeline.measure.child.points import edit_arguments
from ridgeline.patches import reasons


class Wrapper:
    def __init__(self, module: str, device: int | None = None, *, static: bool = False) -> None:
        self.seen = (module, device, static)


def test_an_edit_sees_positional_arguments_by_name_and_may_change_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = types.ModuleType("made_library")
    library.Wrapper = Wrapper
    monkeypatch.setitem(sys.modules, "made_library", library)
    monkeypatch.setitem(reasons("patched"), "made_library:Wrapper.__init__", "a test")

    def edit(arguments: dict[str, Any]) -> None:
        assert arguments["device"] == 3
        arguments["static"] = True
        arguments["device"] = 4

    undo = edit_arguments("made_library:Wrapper.__init__", edit)
    try:
        assert Wrapper("net", 3).seen == ("net", 4, True)
    finally:
        undo()
    assert Wrapper("net", 3).seen == ("net", 3, False)
