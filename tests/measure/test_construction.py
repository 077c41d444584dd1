"""Arguments of constructors, edited while a script runs."""

from __future__ import annotations

from typing import Any

from ridgeline.measure.child.construction import edit_arguments


class Wrapper:
    def __init__(self, module: str, device: int | None = None, *, static: bool = False) -> None:
        self.seen = (module, device, static)


def test_an_edit_sees_positional_arguments_by_name_and_may_change_them() -> None:
    def edit(arguments: dict[str, Any]) -> None:
        assert arguments["device"] == 3
        arguments["static"] = True
        arguments["device"] = 4

    undo = edit_arguments(Wrapper, edit)
    try:
        assert Wrapper("net", 3).seen == ("net", 4, True)
    finally:
        undo()
    assert Wrapper("net", 3).seen == ("net", 3, False)
