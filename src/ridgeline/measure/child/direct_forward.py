"""Who calls `model.forward(x)` in place of `model(x)`, so that only the model's parts are seen.

A module's own call is where hooks and what replaces the call stand; past it, each part that forward
calls is a model by itself: as right, and slower than the whole.
"""

from __future__ import annotations

import sys

from torch import nn

from ridgeline.measure.child.anatomy import parts
from ridgeline.measure.child.guard import guarded


@guarded()
def called_past(module: nn.Module) -> nn.Module | None:
    """The outermost module whose `forward` is running though the module was not called itself.

    Looked at where one of its parts, `module`, is called as if it were the model.
    """
    found, frame = None, sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        code = frame.f_code
        if code.co_name != "forward" or not code.co_argcount:
            continue
        holder = frame.f_locals.get(code.co_varnames[0])
        if isinstance(holder, nn.Module) and any(one is module for one in parts(holder)[1:]):
            found = holder
    return found
