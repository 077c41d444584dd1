"""Model FLOPs utilisation, and the time that a run takes at one.

    training      6 N FLOPs per token: 2 N forward, 4 N backward         Kaplan et al., 2001.08361,
    MFU           6 N · tokens/s / (devices · peak)                      section 2.1
    run           6 N D / (devices · peak · MFU)                         Chowdhery et al.,
                                                                         2204.02311, appendix B

N counts the parameters that a token passes, D the tokens. Attention's own FLOPs come on top, and
recomputation counts for nothing in MFU; `training/` counts both for a whole layout.
"""

from __future__ import annotations

FLOPS_PER_PARAMETER_AND_TOKEN = 6.0


def training_flops(num_parameters: float, num_tokens: float) -> float:
    """FLOPs of training on `num_tokens`, attention's own aside.

    >>> training_flops(7e9, 2e12)
    8.4e+22
    """
    return FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters * num_tokens


def model_flops_utilisation(
    num_parameters: float,
    tokens_per_second: float,
    num_devices: int,
    peak_flops_per_second: float,
) -> float:
    """MFU of a training run; the tokens are those of all devices together.

    >>> round(model_flops_utilisation(7e9, 80_000.0, 8, 989.4e12), 3)
    0.424
    """
    _positive(num_parameters, num_devices, peak_flops_per_second)
    reached = training_flops(num_parameters, tokens_per_second)
    return reached / (num_devices * peak_flops_per_second)


def training_seconds(
    num_parameters: float,
    num_tokens: float,
    num_devices: int,
    peak_flops_per_second: float,
    mfu: float,
) -> float:
    """How long a run takes at that MFU.

    >>> round(training_seconds(7e9, 2e12, 512, 989.4e12, 0.4) / 86400, 1)
    4.8
    """
    _positive(num_parameters, num_devices, peak_flops_per_second, mfu)
    reached = num_devices * peak_flops_per_second * mfu
    return training_flops(num_parameters, num_tokens) / reached


def _positive(*values: float) -> None:
    if min(values) <= 0.0:
        raise ValueError("parameters, devices, peak and MFU must be above 0")
