"""The disk that an optimizer's state lies on, as what is known of it gives it to a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster
from ridgeline.hardware.storage import cached_storage


def cluster_with_disk(
    cluster: Cluster, folder: Path | None = None, bytes_per_second: float | None = None
) -> Cluster:
    """The cluster with one device's share of its disks, and in `assumed` where that is from.

    Args:
        cluster: Any.
        folder: A folder of this machine whose disk was probed; its devices share that disk.
        bytes_per_second: In its place, one device's share, reading and writing alike. With neither
            the cluster stays as it is.

    Raises:
        InputError: The disk was not probed, or the bandwidth is not above 0.
    """
    if folder is not None:
        if not folder.is_dir():
            raise InputError(f"--disk {folder}: no such folder")
        rates = cached_storage(folder)
        if rates is None:
            raise InputError(
                f"--disk {folder}: its disk was not measured;"
                f" `ridgeline hardware --probe --disk {folder}` does that"
            )
        sharing = min(cluster.num_devices, cluster.domain_size)
        shared = f", shared by the {sharing} devices of a node" if sharing > 1 else ""
        return replace(
            cluster,
            disk_read_bytes_per_second=rates.sequential_bytes_per_second / sharing,
            disk_write_bytes_per_second=rates.write_bytes_per_second / sharing,
            assumed=(*cluster.assumed, f"the disk is that of {folder}, as probed{shared}"),
        )
    if bytes_per_second is None:
        return cluster
    if not 0 < bytes_per_second < 1e16:
        raise InputError(
            f"the disk bandwidth is {bytes_per_second:g} bytes per second; give above 0"
        )
    return replace(
        cluster,
        disk_read_bytes_per_second=bytes_per_second,
        disk_write_bytes_per_second=bytes_per_second,
    )
