"""Kernel names short enough to read: without return type, arguments and template."""

from __future__ import annotations

import re
from functools import lru_cache

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
    return f"{own} {found[0]}" if found else own
