"""The small models of `tests/compress`."""

from tests.compress.conftest import tiny_model

__all__ = ["tiny_model"]
