"""What replaces names of other libraries; `patches.toml` lists each name with the reason.

Nothing else in Ridgeline assigns to another library's modules and classes (settings that it offers
for that aside), and no private name is read that does not stand in the list:
`tests/test_patches.py` holds the source to both, and resolves each name in the libraries that are
installed; `constraints.txt` says which releases those are. So a new release is met by one test, and
one page says what it may not change.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, Final, Literal

Undo = Callable[[], None]

COLLECTIVES: Final = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast", "reduce", "gather", "scatter", "all_to_all", "all_to_all_single", "barrier",
    "send", "recv", "all_gather_object", "gather_object", "broadcast_object_list",
    "scatter_object_list",
)  # fmt: skip
"""The blocking collectives that scripts call themselves."""

LATER_COLLECTIVES: Final = ("all_gather_single", "reduce_scatter_single")
"""More of them, from torch 2.13 on."""

LIBDEVICE: Final = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign",
    "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fast_cosf", "fast_expf",
    "fast_sinf", "fast_tanhf", "fdim", "floor", "fma", "fmod", "hypot", "ldexp", "lgamma", "log",
    "log10", "log1p", "log2", "nearbyint", "pow", "rint", "round", "rsqrt", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip
"""The functions of Triton's libdevice that torch has as well."""
_NOT_HIP: Final = ("cbrt", "fast_cosf", "fast_sinf", "fdim")

LIBDEVICE_NAMES: Final = (
    *(f"triton.language.extra.libdevice:{name}" for name in LIBDEVICE),
    *(f"triton.language.extra.cuda.libdevice:{name}" for name in LIBDEVICE if name != "fast_tanhf"),
    *(f"triton.language.extra.hip.libdevice:{name}" for name in LIBDEVICE if name not in _NOT_HIP),
)
"""Where kernels find them; CUDA's own has no fast_tanhf."""

ON_CUDA: Final = (
    "_DeviceGuard", "current_device", "current_stream", "device", "device_count", "device_of",
    "empty_cache", "get_device_capability", "get_device_name", "get_device_properties",
    "is_available", "is_bf16_supported", "manual_seed", "manual_seed_all",
    "reset_peak_memory_stats", "set_device", "synchronize",
)  # fmt: skip
"""What wrappers of kernels call in `torch.cuda`."""

UPLOADS: Final = ("create_repo", "create_commit", "upload_file", "upload_folder")
"""What sends something to a hub."""

_EACH: Final = {
    "collectives": (*COLLECTIVES, *LATER_COLLECTIVES),
    "libdevice": LIBDEVICE_NAMES,
    "on_cuda": ON_CUDA,
    "uploads": UPLOADS,
}


@functools.cache
def reasons(kind: Literal["patched", "private"]) -> dict[str, str]:
    """Name → why `patch` may replace it, or why it is relied upon though it is private.

    >>> reasons("patched")["gc:collect"]
    'counted; and passed over by no-forced-gc'
    """
    text = (files("ridgeline") / "patches.toml").read_text(encoding="utf-8")
    read = tomllib.loads(text)
    found: dict[str, str] = read[kind]
    for row in read.get(f"{kind}_together", ()):
        names = _EACH[row["each"]] if "each" in row else row["names"]
        for beginning in row.get("of", ("",)):
            found |= {f"{beginning}{name}": row["why"] for name in names}
    return found


def patch(name: str, make: Callable[[Any], Any]) -> Undo:
    """Put `make(original)` in the place of a name that the list says is patched.

    A release that lacks the name costs what hangs on it, and a line on stderr, not the run.

    Args:
        name: As it stands in the list; `*` there is any file, whose models have that function.
        make: Is given what stands there now, and returns what shall.

    Returns:
        What puts back what stood there. Where someone has replaced the name again since, theirs
        stays, and a line says so.
    """
    listed = reasons("patched")
    why = listed[name] if name in listed else listed[f"*:{name.rpartition(':')[2]}"]
    path, _, attribute = name.rpartition("." if "." in name.partition(":")[2] else ":")
    try:
        owner = pkgutil.resolve_name(path)
        original = getattr(owner, attribute)
    except (ImportError, AttributeError) as error:
        _say(f"{name} is not there ({error}); left out: {why}")
        return _nothing
    own = vars(owner).get(attribute, _INHERITED)
    setattr(owner, attribute, make(original))
    placed = vars(owner)[attribute]

    def undo() -> None:
        if vars(owner).get(attribute, _INHERITED) is not placed:
            _say(f"{name} was replaced by another since, who is left in its place")
        elif own is _INHERITED:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, own)

    return undo


def in_reverse(undos: Sequence[Undo]) -> Undo:
    """One undo of several patches: the last comes off first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


_INHERITED = object()


def _nothing() -> None:
    pass


def _say(line: str) -> None:
    sys.stderr.write(f"ridgeline: {line}\n")
