"""The library recipe, trained with changes, and what the other commands make of its models.

For the benchmarks of training that makes models smaller: each run is a process of `ridgeline`, as
a user starts it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "examples" / "models" / "library"
RECIPE = ROOT / "examples" / "recipes" / "library.toml"
CONTEXT = 256
_OTHER = {"site-packages", "test", "tests", "idle_test"}
_SEEN_BYTES, _HELD_BYTES = 400_000, 200_000


def trained(out: Path, changes: dict[str, object]) -> float:
    """The held-out loss at the end of a run of the recipe with changes, nats a token."""
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return float(_run("train", RECIPE, "--out", out, *words)["validation_loss"])


def compressed(model: Path, out: Path, schemes: list[str], seen: Path) -> Path:
    """The model compressed, not judged."""
    named = [word for scheme in schemes for word in ("--scheme", scheme)]
    _run("compress", model, *named, "--calibration", seen, "--unjudged", "--out", out)
    return out


def held_out_loss(model: Path, held: Path) -> float:
    """As `ridgeline evaluate` has it, in the precision in which the model is stored."""
    found = _run("evaluate", model, "--text", held, "--context", str(CONTEXT), "--no-speed")
    return float(found["quality"]["loss"])


def texts(library: Path, folder: Path) -> tuple[Path, Path]:
    """Of Python's library, text that the model was trained on, and text that was held out."""
    seen, held = [], []
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not _OTHER & set(name.parts):
            digest = hashlib.blake2b(name.as_posix().encode(), digest_size=8).digest()
            held_out = int.from_bytes(digest, "little") % 20 == 0
            (held if held_out else seen).append(path.read_text(errors="replace"))
    (folder / "seen.txt").write_text("\n".join(seen[::7])[:_SEEN_BYTES])
    (folder / "held.txt").write_text("\n".join(held)[:_HELD_BYTES])
    return folder / "seen.txt", folder / "held.txt"


def _run(*words: object) -> Any:
    command = [sys.executable, "-m", "ridgeline.cli.main", *map(str, words), "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)
