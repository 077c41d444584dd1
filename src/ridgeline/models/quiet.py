"""Libraries that print more than anybody wants to read, made quiet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_TALKATIVE = ("huggingface_hub.utils._http", "torchao", "torch.utils._pytree", "torch.onnx")
"""The hub's retries, which kernels torchao was built without, which operators torch.onnx leaves out
without torchvision; errors still come as errors."""


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """While models and tokenizers are looked for and read."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
