"""OpenMP as torch brings it along: whose runtime it is, and what its variables can say.

The runtime reads its variables once, as it is loaded: a script cannot set them for itself once
torch is imported, and a patch sets them before the script's first import.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.records.measurement import script_of
from ridgeline.techniques import Context

_LIBRARIES = {"libiomp5": "intel", "libomp": "intel", "libgomp": "gnu"}
"""How a library's name begins → whose runtime it is; LLVM's reads Intel's variables."""


def runtime_of_torch() -> str | None:
    """Whose OpenMP runtime lies beside torch: `gnu` or `intel`; None: neither."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    for folder in (package / "lib", package.with_name("torch.libs")):
        for beginning, runtime in _LIBRARIES.items():
            if any(folder.glob(f"{beginning}[.-]*")):
                return runtime
    return None


def runtime_options(context: Context) -> list[Options]:
    """The runtime that torch brings along, as the one setting to try."""
    found = runtime_of_torch()
    return [{"runtime": found}] if found is not None else []


def set_before_imports(context: Context, variables: dict[str, str], then: str = "") -> list[Edit]:
    """Give the variables in the script's first lines, where the user has not.

    Args:
        context: Says which script it is; a module that was started by name has no such place.
        variables: By name.
        then: What follows them.
    """
    script = script_of(context.profile.environment.command)
    if script is None:
        return []
    given = [f'os.environ.setdefault("{name}", "{it}")' for name, it in variables.items()]
    code = "\n".join(["import os", "", *given, *([then] if then else [])])
    return [AtStart(files=(os.path.normpath(script),), code=code, before_imports=True)]
