"""What was kept of the user's files before a measured run changed them, and putting it back.

Each path has a folder of its own, named by its hash, in the folder of what is kept:

    path.json    the path
    content      the old file; absent: there was none
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path


def put_back(folder: Path) -> list[str]:
    """Undo what stopped runs changed, by the notes in their folder; returns the paths."""
    restored = []
    for note in sorted(folder.glob("*/path.json")):
        path = json.loads(note.read_bytes())
        content = note.with_name("content")
        if content.exists():
            temporary = f"{path}.ridgeline-restore"
            shutil.copy2(content, temporary)
            os.replace(temporary, path)
        else:
            Path(path).unlink(missing_ok=True)
        restored.append(path)
    shutil.rmtree(folder, ignore_errors=True)
    return restored
