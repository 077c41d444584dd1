"""The words that commands have for one thing, for who knows it by another command's.

A chip that is judged is `--device`, one of those that serve is `--gpu`, and several of them are a
`--cluster`; `kernels` compiles for an `--arch`.
"""

from __future__ import annotations

from collections.abc import Iterable

SAME_THING = (
    ("--device", "--gpu", "--cluster", "--arch", "--hardware", "--accelerator"),
    ("--model", "--preset"),
    ("--rate", "--qps", "--rps", "--request-rate"),
    ("--prompt", "--input", "--input-tokens", "--input-len", "--isl"),
    ("--answer", "--completion", "--output", "--output-tokens", "--output-len", "--osl"),
    ("--seq", "--sequence", "--seq-len", "--sequence-length", "--context"),
    ("--tp", "--tensor-parallel", "--tensor-parallel-size"),
)


def said_here(option: str, known: Iterable[str]) -> str | None:
    """The option of a command that means what `option` means elsewhere; None: it has none.

    >>> said_here("--device", ["--model", "--gpu"])
    '--gpu'
    """
    here = set(known)
    for words in SAME_THING:
        if option in words:
            return next((word for word in words if word in here and word != option), None)
    return None
