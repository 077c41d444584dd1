"""A layout that fills a cluster, from the few knobs that someone turned; the rest is usual."""

from __future__ import annotations

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.records.layout import Layout
from ridgeline.records.mistyped import meant


def filled_layout(
    cluster: Cluster,
    *,
    tp: int = 1,
    pp: int = 1,
    cp: int = 1,
    zero: int | None = None,
    fsdp: int | None = None,
    **others: object,
) -> Layout:
    """The layout whose data-parallel ranks fill what the other ranks leave of a cluster.

    Args:
        cluster: What is to be filled.
        tp: Tensor-parallel ranks.
        pp: Pipeline stages.
        cp: Context-parallel ranks.
        zero: What is sharded; by default all of it, with a pipeline the optimizer alone.
        fsdp: Ranks that shard; by default all that hold the same weights.
        others: Fields of `Layout`; one that is None stands at its usual value.

    >>> from ridgeline.hardware.cluster import parse_cluster
    >>> layout = filled_layout(parse_cluster("64xH100"), tp=8, pp=2, global_batch=64)
    >>> layout.dp, layout.zero, layout.fsdp, layout.sp
    (4, 1, 4, True)

    Raises:
        InputError: The ranks do not fill the cluster, or the layout cannot be.
    """
    ranks = _data_ranks(cluster, tp, pp, cp)
    stage = zero if zero is not None else _usual_zero(ranks * cp, pp)
    given = {name: value for name, value in others.items() if value is not None}
    chunks = given.get("vpp", 1)
    usual = {
        "sp": tp > 1,
        "schedule": "interleaved" if isinstance(chunks, int) and chunks > 1 else "1f1b",
    }
    sizes = {
        "dp": ranks,
        "fsdp": fsdp if fsdp is not None else (ranks * cp if stage else 1),
        "zero": stage,
        "tp": tp,
        "pp": pp,
        "cp": cp,
    }
    try:
        return msgspec.convert({**usual, **given, **sizes}, Layout)
    except msgspec.ValidationError as error:
        raise InputError(f"layout: {error}{meant(error, Layout)}") from None


def _data_ranks(cluster: Cluster, tp: int, pp: int, cp: int) -> int:
    if min(tp, pp, cp) < 1:
        raise InputError("--tp, --pp and --cp must be 1 or more")
    ranks = cluster.num_devices // (tp * pp * cp)
    if not ranks or ranks * tp * pp * cp != cluster.num_devices:
        raise InputError(
            f"tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp} does not divide the"
            f" {cluster.num_devices} devices of --cluster; change one"
        )
    return ranks


def _usual_zero(ranks: int, pp: int) -> int:
    """Fully sharded without a pipeline, the optimizer alone with one."""
    if ranks == 1:
        return 0
    return 3 if pp == 1 else 1
