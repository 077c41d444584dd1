"""The function that a kernel's name is about, without what compilers add to it.

Names reach a trace as C++ declarations with return type, templates and arguments, as mangled
symbols (`_ZN5aiter…`, ROCm), or as the plain names of Triton, Tensile and cuBLAS. A word among
the template arguments (`vllm::_typeConvert<…>`) tells nothing about what the function does, so what
is judged is the function's own name, and the arguments only where it merely runs one of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_INNERMOST = (re.compile(r"\([^()]*\)"), re.compile(r"\{[^{}]*\}"), re.compile(r"<[^<>]*>"))
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|<unnamed>|\(anonymous\)|_GLOBAL__N_1")
_MANGLED = re.compile(r"_ZN?K?")
_LENGTH = re.compile(r"\d{1,4}")
_ENDING = re.compile(r"\s*\[clone[^\]]*\]|\.kd$|\.sgpr_spill\w*$")
_RUNS_ITS_ARGUMENT = re.compile(
    r"(^|_)elementwise_kernel(_\w+)?$|^(reduce|multi_tensor_apply|device|trampoline)_kernel$"
    r"|^_?kernel\d?$|^kentry\d*$|^global_?kernel$|^(run|launch|invoke|entry)(_kernel)?$"
)
"""Templates that only run what their arguments name."""
_WORD = re.compile(r"\w+(?:::\w+)*")
_SHORTEST = 2
LONGEST_NAME = 8192
"""No more of a name is judged; CUTLASS' are the longest, of 2,000 letters and more."""
_DEEPEST = 64
"""Templates inside each other; what is nested deeper is cut off with its bracket."""
_HAS_A_WORD_OF_ITS_OWN = re.compile(r"scatter|gather|index")


class KernelFunction(NamedTuple):
    """What there is to judge in a kernel's name, in small letters."""

    own: str
    """The last part of the name."""
    path: str
    """The same after its namespaces."""
    whole: str | None
    """Every word, those of arguments too, where the function only runs one of them."""


def kernel_function(name: str) -> KernelFunction:
    """Take a name apart.

    >>> kernel_function("void dpsk::ep::internode::dispatch<true>(int4*, float*)")[:2]
    ('dispatch', 'dpsk::ep::internode::dispatch')
    >>> kernel_function("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bLi256EEEvPT0_").path
    'aiter::add_rmsnorm_quant_kernel'
    >>> kernel_function("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(Params)").whole
    'void cutlass::kernel2 cutlass_80_tensorop_s1688gemm params'
    """
    name = name[:LONGEST_NAME]
    path = (_demangled(name) or _declared(name)).lower()
    own = path.rsplit("::", 1)[-1]
    runs = _RUNS_ITS_ARGUMENT.search(own) and not _HAS_A_WORD_OF_ITS_OWN.search(own)
    return KernelFunction(own, path, " ".join(_words(name.lower())) if runs else None)


def _words(text: str) -> dict[str, None]:
    """The words of a name, each once: a declaration writes its template in its arguments again."""
    return dict.fromkeys(word for word in _WORD.findall(text) if len(word) > _SHORTEST)


def _declared(name: str) -> str:
    """The name in a C++ declaration: no return type, templates, arguments or lambdas."""
    plain = _ENDING.sub("", _ANONYMOUS.sub("anonymous", name)).replace("operator()", "call")
    for bracketed in _INNERMOST:
        for _ in range(_DEEPEST):
            before, plain = plain, bracketed.sub("", plain)
            if before == plain:
                break
    words = re.split(r"[<({]", plain, maxsplit=1)[0].split()
    return words[-1].removesuffix("::") if words else name


def _demangled(name: str) -> str | None:
    """The namespaces and the function of a mangled symbol; None for another name."""
    start = _MANGLED.match(name)
    if start is None:
        return None
    place, parts = start.end(), []
    while (length := _LENGTH.match(name, place)) is not None:
        place = length.end() + int(length[0])
        parts.append(name[length.end() : place])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N")) or None
