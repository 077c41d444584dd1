"""An error names the flag that cures it: one that the command has."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest
from tests.sources import of_kind

from ridgeline.cli.commands import COMMANDS
from ridgeline.cli.program import load_command

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
ANOTHER_PROGRAM = re.compile(
    r"\b(ridgeline [a-z]+|hf download|nsys (?:export|profile)|rocprofv3)\b"
)
"""A message that says what else to run; the flags behind it are that program's."""
OF_ANOTHER_PROCESS = {
    "ridgeline.serve": "serve",
    "ridgeline.train": "train",
    "ridgeline.export": "export",
    "ridgeline.launch.ray_entry": None,
}
"""What a command starts instead of importing → the command; None: a program with own options."""


@functools.cache
def options_of(command: str) -> set[str]:
    found = load_command(command).params
    return {word for one in found for word in (*one.opts, *one.secondary_opts)}


def flags_by_module() -> dict[str, set[str]]:
    """Module → the options of all commands that can reach it."""
    graph = grimp.build_graph("ridgeline", cache_dir=None)
    reachable: dict[str, set[str]] = defaultdict(set)
    for command, (module, _) in COMMANDS.items():
        for below in (module, *graph.find_upstream_modules(module)):
            reachable[below] |= options_of(command)
    return reachable


def raised_words() -> Iterator[tuple[str, str]]:
    """Module and text of all literals in `raise` statements."""
    for place, node in of_kind(ast.Raise):
        parts = ("ridgeline", *Path(place).with_suffix("").parts)
        texts = [
            part.value
            for part in ast.walk(node)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        yield ".".join(parts).removesuffix(".__init__"), " ".join(texts)


@pytest.mark.slow
def test_every_flag_in_an_error_is_an_option_of_a_command_that_can_raise_it() -> None:
    reachable = flags_by_module()
    seen, unknown = 0, []
    for module, text in raised_words():
        started = next((name for name in OF_ANOTHER_PROCESS if module.startswith(name)), None)
        command = OF_ANOTHER_PROCESS.get(started or "", "")
        if command is None:
            continue
        known = reachable[module] | (options_of(command) if command else set())
        elsewhere = ANOTHER_PROGRAM.search(text)
        flags = FLAG.findall(text[: elsewhere.start()] if elsewhere else text)
        seen += len(flags)
        unknown += [f"{module}: {flag}: {text}" for flag in flags if flag not in known]
    assert seen > 100
    assert unknown == []
