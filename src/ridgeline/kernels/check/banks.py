"""Conflicts in shared memory: how many cycles more a warp's access takes than without any.

Triton chooses how a tile lies in shared memory and which thread holds which of its elements; both
stand in the TTGIR, and Triton's own count of conflicts (that of Gluon's `bank_conflicts`) is asked
of each access. Conversions of layouts that have no tile of their own are not among them.
"""

from __future__ import annotations

import os
import re
import tempfile
from typing import Any

import msgspec
from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

_TILE = re.compile(r"(?:tensor|!ttg\.memdesc)<((?:\d+x)+)(\w+)")
_BITS = re.compile(r"\d+")
_SHARED = {"ttg.local_load", "ttg.local_store", "ttg.async_copy_global_to_local"}


def bank_conflicts(ttgir: str, gpu: GPUTarget) -> dict[str, int]:
    """Cycles that conflicts add to one request of a warp, by kind of access and tile.

    The count is made in a process of its own: layouts for which Triton has no count end it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(writing, msgspec.json.encode(_counted(ttgir, gpu)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(text, type=dict[str, int]) if text else {}


def _counted(ttgir: str, gpu: GPUTarget) -> dict[str, int]:
    context = ir.context()
    ir.load_dialects(context)
    make_backend(gpu).load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    found: dict[str, int] = {}

    def see(operation: Any) -> None:
        name = operation.get_name()
        if name not in _SHARED:
            return
        first = operation.get_operand(0)
        loads = name == "ttg.local_load"
        tile, memory = (
            (operation.get_result(0), first) if loads else (first, operation.get_operand(1))
        )
        sizes, dtype = _tile(memory)
        builder.set_insertion_point_to_start(operation.get_block())
        layouts = (
            builder.get_gluon_layout_from_tensor(tile),
            builder.get_gluon_layout_from_memdesc(memory),
        )
        count = builder.get_shared_bank_conflicts(
            *(one._to_ir(builder) for one in layouts), sizes, int(_BITS.findall(dtype)[0])
        )
        what = f"{name.removeprefix('ttg.')} {'x'.join(map(str, sizes))} {dtype}"
        found[what] = max(found.get(what, 0), int(count))

    module.walk(see)
    return found


def _tile(memory: Any) -> tuple[list[int], str]:
    """The sizes and the element's dtype of a tile in shared memory."""
    read = _TILE.match(str(memory.get_type()))
    assert read is not None
    return [int(size) for size in read[1].split("x")[:-1]], read[2]
