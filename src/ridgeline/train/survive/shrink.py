"""The layout of a run on the ranks that are there: data parallelism gives way, nothing else does.

Tensor, pipeline, context and expert parallelism are what a model needs to fit; replicas of the data
stream are not. The global batch stays, so each remaining rank takes more micro-batches of it, and
the order of samples does not depend on the number of ranks: the run trains on the same batches.
"""

from __future__ import annotations

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout


def fitted(layout: Layout, world: int) -> Layout:
    """The same layout with as many data-parallel ranks as `world` processes hold.

    >>> fitted(Layout(dp=4, tp=2, global_batch=12), 6).dp
    3

    Raises:
        InputError: One replica alone needs more processes than there are.
    """
    replica = layout.num_devices // layout.dp
    for dp in range(min(layout.dp, world // replica), 0, -1):
        if layout.global_batch % (dp * layout.micro_batch) or (dp * layout.cp) % layout.ep:
            continue
        fsdp = _sharded(layout, dp)
        if fsdp:
            return msgspec.structs.replace(layout, dp=dp, fsdp=fsdp)
    raise InputError(
        f"{world} processes are left and one replica of the model needs {replica}"
        f" (tp {layout.tp} x pp {layout.pp} x cp {layout.cp}); wait for nodes, or plan anew"
    )


def _sharded(layout: Layout, dp: int) -> int:
    """Ranks that shards lie on: as many of the layout's as fit; 0: none do."""
    if layout.zero == 0:
        return layout.fsdp
    over = dp * layout.cp
    fitting = (n for n in range(min(layout.fsdp, over), 0, -1) if over % n == 0)
    found = next((n for n in fitting if n % layout.cp == 0), 0)
    return 0 if found == 1 and over > 1 else found
