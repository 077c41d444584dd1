"""A user's Python file as a module, made of its source alone."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import CodeType, ModuleType


class _FromSource(importlib.machinery.SourceFileLoader):
    """A loader that leaves no bytecode beside the file, and takes none for a newer file.

    Python knows an edited file by its size and the second of its last change.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def import_file(name: str, path: Path) -> ModuleType:
    """Run a file as the module `name`, anew each time; one that fails leaves no module behind.

    Raises:
        BaseException: Whatever the file raises, SystemExit too.
    """
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
