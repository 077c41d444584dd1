"""Pages of the documentation that the program's own data make, as a hook of mkdocs.

Commands are read from typer, techniques from their cards, rules from their modules, devices and
schemes from their tables, the Python reference from the public names: what they say changes with
them and is written nowhere twice. `python docs/site/pages.py` draws `docs/house.svg` again, from
the floors of the import contract.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import posixpath
import re
import sys
import tomllib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src/ridgeline"


@functools.cache
def generated_pages() -> dict[str, str]:
    """Every generated page: its place under docs/ → its text."""
    return {
        "generated/commands.md": commands_page(),
        "generated/python.md": python_page(),
        "generated/figures.md": figures_page(),
        "generated/catalogues/techniques.md": techniques_page(),
        "generated/catalogues/rules.md": rules_page(),
        "generated/catalogues/devices.md": devices_page(),
        "generated/catalogues/schemes.md": schemes_page(),
    }


def commands_page() -> str:
    """Every command with its arguments and options, as typer understands them."""
    from ridgeline.cli.commands import COMMANDS, PANELS

    parts = ["# Commands", "Every command, from the definitions that the program itself parses by."]
    for panel in dict.fromkeys(PANELS.values()):
        parts.append(f"## {panel}")
        for name in COMMANDS:
            if PANELS[name.partition(" ")[0]] == panel:
                parts += _command(name)
    return "\n\n".join(parts) + "\n"


def _command(name: str) -> list[str]:
    from ridgeline.cli.program import load_command

    command = load_command(name)
    rows = []
    for one in command.params:
        if not getattr(one, "hidden", False):
            spelled = ", ".join((*one.opts, *one.secondary_opts))
            if one.param_type_name == "argument":
                spelled = one.metavar or one.name.upper()
            default = "" if one.required or not _says(one.default) else f"`{one.default}`"
            told = "required" if one.required else default
            rows.append((f"`{spelled}`", getattr(one, "help", "") or "", told))
    usage = f"```\nridgeline {name} [options] {_arguments(command)}".rstrip() + "\n```"
    return [
        f"### ridgeline {name}",
        inspect.cleandoc(command.help or "").replace("\n\n    ", "\n\n"),
        usage,
        _table(("argument or option", "meaning", "default"), rows),
    ]


def _says(default: Any) -> bool:
    return default is not None and default is not False and not callable(default)


def _arguments(command: Any) -> str:
    words = [one.metavar or one.name.upper() for one in command.params
             if one.param_type_name == "argument"]  # fmt: skip
    return " ".join(words)


def python_page() -> str:
    """The public names of the package, from their docstrings."""
    package = ast.parse((PACKAGE / "__init__.py").read_text())
    homes = {
        alias.name: node.module
        for node in ast.walk(package)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ridgeline.")
        for alias in node.names
    }
    parts = ["# Python", _first_paragraphs(ast.get_docstring(package) or "")]
    parts += [f"::: {homes[name]}.{name}" for name in sorted(homes, key=str.lower)]
    return "\n\n".join(parts) + "\n"


def techniques_page() -> str:
    """Every technique's card."""
    from ridgeline.techniques import all_techniques

    known = sorted(all_techniques().values(), key=lambda one: (one.CARD.stage, one.CARD.name))
    parts = [
        "# Techniques",
        (
            f"The {len(known)} cards of what `ridgeline tune` can apply, in the order in which a "
            "stack applies them. The fields: [techniques](../../reference/techniques.md)."
        ),
    ]
    for one in known:
        rows = [
            (field.name.replace("_", " "), _value(getattr(one.CARD, field.name)))
            for field in dataclasses.fields(one.CARD)
            if field.name not in ("name", "title") and getattr(one.CARD, field.name)
        ]
        parts += [f"## {one.CARD.name}", f"**{one.CARD.title}.** {_module_text(one)}"]
        parts.append(_table(("card", ""), rows))
    return "\n\n".join(parts) + "\n"


def rules_page() -> str:
    """Every rule of `doctor` and of `doctor --trace`, and the techniques that cure its causes."""
    from ridgeline.diagnose.rules import all_rules
    from ridgeline.diagnose.trace_rules import all_trace_rules
    from ridgeline.techniques import all_techniques

    cures: dict[str, list[str]] = {}
    for name, one in all_techniques().items():
        for cause in one.CARD.cures:
            cures.setdefault(cause, []).append(name)
    parts = [
        "# Rules",
        (
            "What `ridgeline doctor` looks for, one file per rule. Evidence and cure of each "
            "cause: [findings](../../reference/findings.md)."
        ),
    ]
    for title, rules in (
        ("Rules over scripts", all_rules()),
        ("Rules over traces", all_trace_rules()),
    ):
        parts.append(f"## {title}")
        for name, rule in rules.items():
            parts += [f"### {name.replace('_', ' ')}", _module_text(rule)]
            rows = [
                (f"`{cause}`", ", ".join(f"[{cure}](techniques.md#{cure})"
                 for cure in cures.get(cause, ())) or "by hand")
                for cause in rule.CAUSES
            ]  # fmt: skip
            parts.append(_table(("cause", "tuned by"), rows))
    return "\n\n".join(parts) + "\n"


def devices_page() -> str:
    """Every device of the catalogue, with the sources of its figures."""
    from ridgeline.hardware.catalogue import devices

    known = sorted(devices(), key=lambda one: (one.vendor, one.year, one.name))
    rows = [
        (
            f"[{one.name}](#{_anchor(one.name)})",
            str(one.year),
            f"{one.memory.capacity_bytes / 2**30:.0f}",
            f"{one.memory.bandwidth_bytes_per_second / 1e12:.2f}",
            f"{one.peak(one.ridge_dtype) / 1e12:,.0f} {one.ridge_dtype}",
            f"{one.ridge_flops_per_byte():,.0f}",
        )
        for one in known
    ]
    parts = [
        "# Devices",
        (
            "Facts with sources, from the tables in `src/ridgeline/hardware/devices/`. Rates are "
            "dense. The ridge is the arithmetic intensity above which compute is the limit."
        ),
        _table(("device", "year", "GiB", "TB/s", "TFLOP/s", "ridge, FLOP/byte"), rows),
    ]
    for one in known:
        rates = [(kind, f"{rate / 1e12:,.1f}") for kind, rate in one.peaks.items()]
        cited = [
            f"- [{source.title}]({source.url}), {source.where}, {source.date}"
            for source in one.sources.values()
        ]
        parts += [f"## {one.name}", f"{one.vendor} {one.architecture}. {one.notes}".strip()]
        parts += [_table(("dtype", "TFLOP/s"), rates), "\n".join(cited)]
    return "\n\n".join(parts) + "\n"


def schemes_page() -> str:
    """The parts that the name of a compression scheme is made of."""
    from ridgeline.records.scheme_names import offered

    parts = [
        "# Schemes",
        (
            "What `ridgeline compress --scheme` takes, from the table it parses names by. How "
            "parts go together: [schemes](../../reference/schemes.md)."
        ),
    ]
    for kind, rows in offered().items():
        parts += [f"## {kind}", _table(("part", "meaning"), [(f"`{a}`", b) for a, b in rows])]
    return "\n\n".join(parts) + "\n"


AGREES = 0.03
"""How far ours may be from a printed figure of two or three digits, as a share."""


def figures_page() -> str:
    """Printed figures beside ours, each with its command (`figures.toml`)."""
    with (DOCS / "site/figures.toml").open("rb") as file:
        known = tomllib.load(file)["figure"]
    apart = sum(abs(one["ours"] / one["printed"] - 1.0) > AGREES for one in known)
    parts = [
        "# Figures of the field",
        (
            f"{len(known)} figures that courses, papers and interview guides print, beside what "
            f"a command gives: {len(known) - apart} agree within {AGREES:.0%}, {apart} do not, and "
            "why stands beside them. A test runs every command. The prose to many of them: "
            "[worked examples](../worked-examples.md)."
        ),
    ]
    for topic in dict.fromkeys(one["topic"] for one in known):
        parts.append(f"## {topic}")
        for one in (one for one in known if one["topic"] == topic):
            agrees = abs(one["ours"] / one["printed"] - 1.0) <= AGREES
            verdict = "agrees" if agrees else "**differs**"
            unit = f" {one['unit']}".rstrip()
            parts.append(
                f"**{one['says'][0].upper()}{one['says'][1:]}**: printed {one['printed']:,}{unit}, "
                f"ours {one['ours']:,}{unit}, {verdict}. {one['why']}".rstrip()
            )
            parts.append(f"```\n{one['command']}\n```")
    return "\n\n".join(parts) + "\n"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"`{key}`: {getattr(one, '__name__', one)}" for key, one in value.items())
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value)
    return str(getattr(value, "name", value)).lower() if hasattr(value, "name") else str(value)


def _module_text(module: Any) -> str:
    return _first_paragraphs(inspect.getdoc(module) or "", most=1)


def _first_paragraphs(text: str, most: int = 2) -> str:
    return "\n\n".join(text.split("\n\n")[:most])


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


# The picture of the house.


def floors() -> list[list[str]]:
    """The rooms on each floor, the highest first, as the import contract has them."""
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = text["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    return [re.split(r"\s*[|:]\s*", layer) for layer in layers]


def house_svg() -> str:
    """The floors of the import contract as a picture: each room, and what it is for."""
    width, row, top = 860, 26, 34
    lines, y = [], top
    for floor in floors():
        height = row * len(floor) + 10
        lines.append(f'<rect x="10" y="{y}" width="{width - 20}" height="{height}" rx="4"/>')
        for number, room in enumerate(floor):
            at = y + 22 + row * number
            lines.append(f'<text class="room" x="24" y="{at}">{room}</text>')
            lines.append(f'<text x="130" y="{at}">{escape(_purpose(room))}</text>')
        y += height + 6
    style = (
        "text{font:13px system-ui,sans-serif;fill:#333}.room{font-weight:bold;fill:#123}"
        "rect{fill:#eef3f8;stroke:#9ab}svg{background:#fff}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 4}" role="img" '
        'aria-label="The rooms of Ridgeline on their floors">\n'
        f"<style>{style}</style>\n"
        f'<text x="10" y="22">Imports point downward only; rooms on one floor do not meet.</text>\n'
        + "\n".join(lines)
        + "\n</svg>\n"
    )


def _purpose(room: str) -> str:
    path = PACKAGE / room / "__init__.py"
    path = path if path.exists() else PACKAGE / f"{room}.py"
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s", text)[0]
    return sentence if len(sentence) <= 105 else sentence[:104].rsplit(" ", 1)[0] + " …"


# What mkdocs calls.


def on_config(config: Any) -> Any:
    """Write the pages of a folder where the navigation names the folder."""
    places = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    places = sorted([*places, *generated_pages()])

    def pages(entry: Any) -> Any:
        if isinstance(entry, dict):
            return {title: pages(one) for title, one in entry.items()}
        if isinstance(entry, list):
            return [pages(one) for one in entry]
        if entry.endswith("/"):
            return [place for place in places if posixpath.dirname(place) == entry.rstrip("/")]
        return entry

    config.nav = pages(config.nav)
    return config


_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)[^)#\s]*)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for place, text in generated_pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show a link to a file outside docs/ as the file's name: the site does not hold it."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        return match[0] if target.startswith("docs/") else f"{match[1]} (`{target}`)"

    return _LINK.sub(shown, markdown)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    (DOCS / "house.svg").write_text(house_svg())
