"""The learning rate that a plan starts from, by the size of the model."""

from __future__ import annotations

FINAL_SHARE = 0.1
"""The share of the peak rate at the end of the cosine (LLaMA, arXiv 2302.13971, section 2.3)."""
_LEARNING_RATES = ((20e9, 3.0e-4), (float("inf"), 1.5e-4))
"""Up to so many parameters, this rate (table 2 there)."""
_ADAPTER_RATES = ((20e9, 2.0e-4), (float("inf"), 1.0e-4))
"""The same of adapters (QLoRA, arXiv 2305.14314, appendix B.2, table 9)."""


def starting_rate(num_parameters: float, *, adapters: bool = False) -> float:
    """The peak learning rate of a model's weights, or of adapters beside them.

    >>> starting_rate(7e9), starting_rate(65e9)
    (0.0003, 0.00015)
    """
    rates = _ADAPTER_RATES if adapters else _LEARNING_RATES
    return next(rate for most, rate in rates if num_parameters <= most)
