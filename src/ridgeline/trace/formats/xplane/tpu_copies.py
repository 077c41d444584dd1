"""A TPU's asynchronous copies, by the text of the instructions that start and await them.

`copy-start` issues a copy and `copy-done` waits for it; the copy itself is an event of the line
`Async XLA Ops`, where that was recorded. A shape's layout says which memory it lies in: `S(5)` the
host's, `S(1)` the core's own, nothing HBM (xla/layout.h, memory spaces; xla/service/host_offload
in openxla/xla). The first shape of either instruction is what is written, the second what is read.

    %copy-start.4 = (f32[5,256]{1,0:T(8,128)}, f32[5,256]{1,0:T(8,128)S(5)}, u32[]) copy-start(…)
"""

from __future__ import annotations

import re

from ridgeline.trace.columns import ABSENT

_INSTRUCTION = re.compile(r"= .*? copy-(?P<part>start|done)\(", re.DOTALL)
_SHAPE = re.compile(
    r"(?P<type>[a-z]+\d*)(?:e\dm\d\w*)?\[(?P<sizes>[\d,]*)\](?:\{(?P<layout>[^}]*)\})?"
)
_SPACE = re.compile(r"S\((\d+)\)")
_HOST = "5"
_BITS = re.compile(r"\d+")
_BYTES = {"pred": 1}


def tpu_copy(instruction: str, *, itself: bool) -> tuple[str, int] | None:
    """Name and size in bytes of an asynchronous copy; None for another instruction.

    Args:
        instruction: the text of an HLO instruction.
        itself: whether the event is the copy, and not what issues or awaits it: only then does it
            have a size, so that no byte counts twice.

    >>> tpu_copy("%c = f32[8]{0} copy-done((f32[8]{0}, f32[8]{0:S(5)}, u32[]) %s)", itself=False)
    ('Memcpy HtoD', -1)
    """
    found = _INSTRUCTION.search(instruction)
    if found is None:
        return None
    # `copy-start` has both shapes in its result, `copy-done` in its operand.
    both = instruction if found["part"] == "start" else instruction[found.end() :]
    shapes = _SHAPE.finditer(both, both.find("("))
    written, read = next(shapes, None), next(shapes, None)
    if written is None or read is None:
        return None
    ends = "to".join("H" if _space(one) == _HOST else "D" for one in (read, written))
    return f"Memcpy {ends}", _bytes(written) if itself else ABSENT


def _space(shape: re.Match[str]) -> str:
    found = _SPACE.search(shape["layout"] or "")
    return found[1] if found else "0"


def _bytes(shape: re.Match[str]) -> int:
    bits = _BITS.search(shape["type"])
    width = int(bits[0]) / 8 if bits else _BYTES.get(shape["type"], 0)
    count = 1
    for size in filter(None, shape["sizes"].split(",")):
        count *= int(size)
    return int(count * width) if width else ABSENT
