"""The compiler of grammars starts without torch and transformers, unless xgrammar insists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASK = """
import sys
from ridgeline.serve.sampling.lone_xgrammar import lone_xgrammar
found = lone_xgrammar()
print(sorted({"torch", "transformers"} & set(sys.modules)), hasattr(found, "GrammarMatcher"))
"""


def answer(*path: Path) -> str:
    """What a new process says, with folders before all others in its path."""
    code = f"import sys; sys.path[:0] = {[str(one) for one in path]}\n{ASK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_neither_library_is_imported() -> None:
    assert answer() == "[] True"


def test_a_release_that_needs_them_gets_them(tmp_path: Path) -> None:
    (tmp_path / "tvm_ffi.py").write_text("")
    (tmp_path / "torch.py").write_text("__version__ = '9'\n")
    (tmp_path / "xgrammar.py").write_text("import torch\nwhat = torch.__version__\n")
    assert answer(tmp_path) == "['torch'] False"
