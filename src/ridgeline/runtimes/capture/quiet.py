"""Conversion without a word on the user's terminal: exporters print graphs, warn and log."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

_LOUD = ("torch", "onnxscript", "onnx_ir", "nncf", "openvino", "root", "executorch", "torchao")


@contextlib.contextmanager
def silence() -> Iterator[io.StringIO]:
    """Hold back what the block prints, warns and logs; what it printed can be read."""
    said = io.StringIO()
    levels = {name: logging.getLogger(name).level for name in _LOUD}
    disabled = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield said
        finally:
            logging.disable(disabled)
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)
