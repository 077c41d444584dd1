"""What a kernel's name tells, which is all that a trace says: what it does, and its short form.

The names are data: `kernel_classes.toml` holds the rules, in the order in which they are tried;
they are about the function's own name, without what compilers add to it. What no rule knows is
OTHER.

Names reach a trace as C++ declarations with return type, templates and arguments, as mangled
symbols (`_ZN5aiter…`, ROCm), or as the plain names of Triton, Tensile and cuBLAS. A word among
the template arguments (`vllm::_typeConvert<…>`) tells nothing about what the function does, so what
is judged is the function's own name, and the arguments only where it merely runs one of them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from enum import IntEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Codes, Kind, Mask, Trace
from ridgeline.trace.sorting import distinct


class KernelClass(IntEnum):
    """The classes, in the order of `KERNEL_CLASSES`."""

    GEMM = 0
    CONVOLUTION = 1
    ATTENTION = 2
    NORM = 3
    ELEMENTWISE = 4
    REDUCTION = 5
    INDEXING = 6
    OPTIMIZER = 7
    COMMUNICATION = 8
    COPY = 9
    OTHER = 10
    SCAN = 11


KERNEL_CLASSES = tuple(kind.name.lower() for kind in KernelClass)
MATRIX = (KernelClass.GEMM, KernelClass.CONVOLUTION, KernelClass.ATTENTION)
"""The classes whose work is products of matrices."""
_MAY_MULTIPLY = (*MATRIX, KernelClass.SCAN, KernelClass.OTHER)
"""Kernels that may multiply matrices; no other one uses tensor cores."""


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of the table."""

    kernel_class: str = msgspec.field(name="class")
    source: str
    names: list[str]
    namespaces: bool = False


class _TensorCores(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names that say that tensor cores are used, or that they are not."""

    yes: list[str]
    no: list[str]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in `kernel_classes.toml`."""

    rule: list[_Row]
    tensor_cores: _TensorCores


@cache
def _table() -> _Table:
    text = Path(__file__).with_name("kernel_classes.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table)


class _Names:
    """Regular expressions most of which stand for a few words: those are found much faster."""

    def __init__(self, names: Sequence[str]) -> None:
        spelled = {name: _spellings(name) for name in names}
        rest = [name for name, words in spelled.items() if not all(map(_PLAIN.fullmatch, words))]
        words = {word for name in names if name not in rest for word in spelled[name]}
        self.words = tuple(
            word for word in words if not any(one in word for one in words if one != word)
        )
        self.pattern = re.compile("|".join(rest)) if rest else None

    def found_in(self, text: str) -> bool:
        """Whether one of the names is somewhere in the text."""
        for word in self.words:  # a loop: twice as fast as `any` of a generator
            if word in text:
                return True
        return self.pattern is not None and self.pattern.search(text) is not None


_PLAIN = re.compile(r"[\w:]+")
_CHOICE = re.compile(r"\(([\w|]*)\)(\??)|(\w)\?")
"""Words of which one is there, or may be; a letter that may be."""


def _spellings(name: str) -> list[str]:
    """What a name of plain words with choices stands for; any other name is left as it is.

    >>> _spellings("moe_?(sum|reduce)"), _spellings("conv(?!ert)")
    (['moe_sum', 'moe_reduce', 'moesum', 'moereduce'], ['conv(?!ert)'])
    """
    choice = _CHOICE.search(name)
    if choice is None or "\\" in name or "(?" in name:
        return [name]
    words = (choice[1] if choice[3] is None else choice[3]).split("|")
    if choice[2] != "":  # a group with a question mark, or a letter
        words.append("")
    ends = _spellings(name[choice.end() :])
    return [name[: choice.start()] + word + end for word in words for end in ends]


@cache
def _rules() -> tuple[tuple[KernelClass, bool, _Names], ...]:
    return tuple(
        (KernelClass[row.kernel_class.upper()], row.namespaces, _Names(row.names))
        for row in _table().rule
    )


@cache
def _tensor_core_names() -> tuple[_Names, _Names]:
    table = _table().tensor_cores
    return _Names(table.yes), _Names(table.no)


@lru_cache(maxsize=65536)
def class_of_name(name: str) -> KernelClass:
    """What a kernel of this name does.

    >>> class_of_name("ampere_sgemm_128x64_nn").name, class_of_name("triton_poi_fused_addmm_0").name
    ('GEMM', 'ELEMENTWISE')
    >>> class_of_name("void dpsk::ep::internode::dispatch<true>(int4*)").name
    'COMMUNICATION'
    """
    function = kernel_function(name)
    for text in (function.whole or function.own, function.path):
        if (found := _judged(text, function)) is not None:
            return found
    return KernelClass.OTHER


def _judged(text: str, function: KernelFunction) -> KernelClass | None:
    for kind, namespaces, names in _rules():
        if names.found_in(function.path if namespaces else text):
            return kind
    return None


@lru_cache(maxsize=65536)
def on_tensor_cores(name: str) -> bool | None:
    """Does the name say that the kernel multiplies on tensor (or matrix) cores? None: it does not.

    >>> on_tensor_cores("ampere_fp16_s16816gemm_fp16_128x64"), on_tensor_cores("volta_sgemm_64x64")
    (True, False)
    >>> on_tensor_cores("triton_tem_fused_mm_3"), on_tensor_cores("SubTensorOpWithScalar1d")
    (None, False)
    """
    if class_of_name(name) not in _MAY_MULTIPLY:
        return False
    yes, no = _tensor_core_names()
    name = name[:LONGEST_NAME].lower()
    if no.found_in(name):
        return False
    return True if yes.found_in(name) else None


def kernel_classes(trace: Trace) -> Codes:
    """`KernelClass` of each GPU event; copies and fills are COPY."""
    return trace.derived("kernel_classes", _kernel_classes)


def _kernel_classes(trace: Trace) -> Codes:
    gpu = trace.gpu
    used = distinct(gpu.name)
    codes = np.zeros(len(trace.names), np.int8)
    codes[used] = [class_of_name(trace.names[number]) for number in used.tolist()]
    classes = codes[gpu.name]
    classes[gpu.kind != Kind.KERNEL] = KernelClass.COPY
    classes[(gpu.collective != ABSENT) & (gpu.kind == Kind.KERNEL)] = KernelClass.COMMUNICATION
    return classes


def is_communication(trace: Trace) -> Mask:
    """Which GPU events are communication kernels."""
    return trace.derived("is_communication", _is_communication)


def _is_communication(trace: Trace) -> Mask:
    talks: Mask = kernel_classes(trace) == KernelClass.COMMUNICATION
    return talks


_RETURNS = re.compile(r"^(void|int|float|bool|auto)\s+")
_CPLUSPLUS = re.compile(r"[<(]")
_FRAME = re.compile(r"\(\d+\): |^(aten|autograd|torch|nn\.Module|ProfilerStep|enumerate)\b")
_WRAPPERS = ("Kernel", "Kernel2", "device_kernel")
"""Templates that only run what their argument names."""
_FUNCTOR = re.compile(r"(\w*[Ff]unctor\w*|\w+_kernel_cuda|\w+_kernel_impl)")


@lru_cache(maxsize=65536)
def short_name(name: str) -> str:
    """The name of a kernel without what a compiler adds to it.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>"
    ...            ", at::detail::Array<char*, 1> >(int, at::native::FillFunctor<int>)")
    'vectorized_elementwise_kernel FillFunctor'
    >>> short_name("ampere_sgemm_128x64_nn"), short_name("aten::add")
    ('ampere_sgemm_128x64_nn', 'aten::add')
    >>> short_name("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)")
    'cutlass_80_tensorop_s1688gemm'
    >>> short_name("train.py(12): step"), short_name("<built-in function zoom>")
    ('train.py(12): step', '<built-in function zoom>')
    >>> short_name("(no stack recorded)")
    '(no stack recorded)'
    """
    if name.startswith(("Mem", "<")) or _FRAME.search(name) or not _CPLUSPLUS.search(name):
        return name
    plain = _RETURNS.sub("", name).replace("(anonymous namespace)", "anonymous")
    plain = plain.replace("<unnamed>", "anonymous").replace("::operator()", "")
    head = plain.split("<", 1)[0].split("(", 1)[0].strip()
    own = head.rsplit("::", 1)[-1] or head
    if own in _WRAPPERS and "<" in plain:
        return plain.split("<", 1)[1].split("<", 1)[0].split(">", 1)[0].split(",", 1)[0].strip()
    found = [part for part in _FUNCTOR.findall(plain) if part not in {own, "Functor"}]
    return f"{own} {found[0]}" if found else own or name


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
