"""Fields that say nothing: samplers that are off, and other names of fields that are given.

Programs that were written for llama.cpp's server, text-generation-webui or KoboldCpp send all that
they know, mostly switched off; what belongs to a sampler that is off then says nothing, either.
Values are those of the servers' own documentation (llama.cpp, `tools/server/README.md`;
text-generation-webui, `docs/03 - Parameters Tab.md`). At any other value a sampler stays an unknown
field, which is refused by its name.
"""

from __future__ import annotations

from typing import Any

_OFF: dict[str, tuple[float, ...]] = {
    "typical_p": (1,),
    "typical": (1,),
    "typ_p": (1,),
    "tfs_z": (1,),
    "tfs": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "nsigma": (-1, 0),
    "skew": (0,),
    "rep_pen": (1,),
    "repeat_penalty": (1,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "ban_eos_token": (0,),
    "add_bos_token": (1,),
    "min_tokens": (0,),
    "max_tokens_second": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "smoothing_factor": (0,),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "n_indent": (0,),
    "min_keep": (0,),
    "n_discard": (0,),
}
"""The values at which each does nothing."""
_SAME: dict[str, tuple[str, ...]] = {
    "max_new_tokens": ("max_tokens", "n_predict"),
    "max_tokens": ("n_predict",),
    "n_predict": ("max_tokens",),
    "num_predict": ("max_tokens", "n_predict"),
    "stopping_strings": ("stop",),
    "stop_sequence": ("stop",),
    "rep_pen": ("repetition_penalty", "repeat_penalty"),
    "repeat_penalty": ("repetition_penalty",),
    "repetition_penalty": ("repeat_penalty",),
    "sampler_seed": ("seed",),
}
"""Other servers' names of fields, which say nothing where the field stands beside them with the
same value: programs that serve many servers send all names at once."""
_PENALTIES = (
    "repeat_penalty", "rep_pen", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_PARTS: dict[str, tuple[str, ...]] = {
    "xtc_threshold": ("xtc_probability",),
    "repeat_last_n": _PENALTIES,
    "rep_pen_range": _PENALTIES,
    "rep_pen_slope": ("rep_pen",),
    "repetition_penalty_range": _PENALTIES,
    "dry_base": ("dry_multiplier",),
    "dry_allowed_length": ("dry_multiplier",),
    "dry_penalty_last_n": ("dry_multiplier",),
    "dry_sequence_breakers": ("dry_multiplier",),
    "dynatemp_exponent": ("dynatemp_range",),
    "smoothing_curve": ("smoothing_factor",),
    "mirostat_tau": ("mirostat", "mirostat_mode"),
    "mirostat_eta": ("mirostat", "mirostat_mode"),
}
"""What belongs to which sampler, and is nothing without it."""


def is_off(name: Any, given: dict[Any, Any]) -> bool:
    """Whether a field is a sampler at the value at which it does nothing, or a part of such a one.

    >>> is_off("typical_p", {"typical_p": 1}), is_off("typical_p", {"typical_p": 0.5})
    (True, False)
    >>> is_off("dry_base", {"dry_base": 1.75}), is_off("dry_base", {"dry_multiplier": 1})
    (True, False)
    >>> is_off("n_predict", {"n_predict": 8, "max_tokens": 8})
    True
    """
    if any(one in given and given[one] == given[name] for one in _SAME.get(name, ())):
        return True
    if name in _PARTS:
        return all(one not in given or is_off(one, given) for one in _PARTS[name])
    value = given.get(name)
    return name in _OFF and isinstance(value, int | float) and value in _OFF[name]
