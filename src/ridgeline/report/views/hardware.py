"""What `ridgeline hardware` and `kernels` show: this machine, devices, compiled CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc

if TYPE_CHECKING:
    from ridgeline.hardware.ceilings import Ceilings
    from ridgeline.hardware.facts import Device, Link, Node, Price
    from ridgeline.hardware.link_rates import LinkRates
    from ridgeline.hardware.machine import Machine
    from ridgeline.hardware.storage import StorageRates


def machine_document(
    machine: Machine, ceilings: Ceilings | None, storage: StorageRates | None
) -> doc.ReportDocument:
    """What this machine is and, where it was probed, what it can do."""
    known = doc.Paragraph("Ceilings: not measured yet; run: ridgeline hardware --probe")
    shown = [_machine(machine), known if ceilings is None else _ceilings(ceilings)]
    shown += [] if storage is None else [_storage(storage)]
    return doc.ReportDocument("This machine", shown)


def _machine(machine: Machine) -> doc.Chapter:
    cpu = machine.cpu
    cores = f"{cpu.num_usable_cores} usable of {cpu.num_logical_cores} logical"
    cores += f", {cpu.num_physical_cores} physical, {cpu.num_sockets} socket(s)"
    pairs: list[tuple[str, doc.Words]] = [
        ("CPU", f"{cpu.model} ({cpu.architecture})"),
        ("Cores", cores),
    ]
    if cpu.cgroup_cores is not None:
        pairs.append(("Cgroup quota", f"{cpu.cgroup_cores:g} cores"))
    caches = (
        f"L{cache.level} {cache.kind.lower()} {quantity.binary_memory(cache.size_bytes)}"
        f" x {cache.num_instances}"
        for cache in cpu.caches
    )
    limit = machine.memory_limit_bytes
    granted = (
        "" if limit is None else f", of which the cgroup grants {quantity.binary_memory(limit)}"
    )
    pairs += [
        ("ISA", " ".join(cpu.isa) or "unknown"),
        ("Caches", ", ".join(caches) or "unknown"),
        ("Memory", quantity.binary_memory(machine.memory_bytes) + granted),
    ]
    for gpu in machine.gpus:
        named = "" if gpu.device is None else f" = {gpu.device}"
        memory = "" if gpu.memory_bytes is None else f", {quantity.binary_memory(gpu.memory_bytes)}"
        pairs.append((f"GPU {gpu.index}", f"{gpu.name}{named}{memory}"))
    if not machine.gpus:
        pairs.append(("GPU", "none found"))
    pairs += [("Note", note) for note in machine.notes]
    return doc.Chapter("This machine", [doc.Values(pairs, listed=True)])


def _ceilings(ceilings: Ceilings) -> doc.Chapter:
    rows: list[tuple[doc.Cell, ...]] = []
    for kind, rate in ceilings.matmul_flops_per_second.items():
        note = ceilings.skipped.get(kind, f"n = {ceilings.matmul_sizes[kind]}")
        rows.append((f"matmul {kind}", quantity.scaled(rate, "op/s"), note))
    for kind in ceilings.skipped.keys() - ceilings.matmul_flops_per_second.keys():
        rows.append((f"matmul {kind}", None, ceilings.skipped[kind]))
    buffer = f"buffers of {quantity.binary_memory(ceilings.bandwidth_buffer_bytes)}"
    for pattern, rate in ceilings.bandwidth_by_pattern.items():
        rows.append((f"memory {pattern}", quantity.scaled(rate, "B/s"), buffer))
    for count, rate in ceilings.bandwidth_by_threads.items():
        rows.append((f"memory, {count} thread(s)", quantity.scaled(rate, "B/s"), "best pattern"))
    rows += [
        ("operator dispatch", quantity.seconds(ceilings.dispatch_seconds), "forward"),
        ("", quantity.seconds(ceilings.dispatch_autograd_seconds), "forward, recorded"),
        ("", quantity.seconds(ceilings.dispatch_backward_seconds), "backward"),
    ]
    if ceilings.launch_seconds is not None:
        launch = quantity.seconds(ceilings.launch_seconds)
        rows.append(("kernel launch", launch, "queued back to back"))
    copies = {
        "host to device, pinned": ceilings.host_to_device_pinned_bytes_per_second,
        "host to device, pageable": ceilings.host_to_device_pageable_bytes_per_second,
        "device to host, pinned": ceilings.device_to_host_pinned_bytes_per_second,
        "device to host, pageable": ceilings.device_to_host_pageable_bytes_per_second,
    }
    for name, copied in copies.items():
        if copied is not None:
            rows.append((name, quantity.scaled(copied, "B/s"), ""))
    if ceilings.busy:
        busy = "the machine was busy: the rates are too low; probe again"
        rows.append(("Note", "", busy))
    effort = "quick" if ceilings.quick else "full"
    title = f"Measured ceilings of {ceilings.device_name} ({effort} probe, {ceilings.date})"
    return doc.Chapter(title, [_untitled(rows)])


def _storage(storage: StorageRates) -> doc.Chapter:
    random = f"{quantity.binary_memory(storage.random_read_bytes)} each"
    rows: list[tuple[doc.Cell, ...]] = [
        ("read in order", quantity.scaled(storage.sequential_bytes_per_second, "B/s"), ""),
        (
            f"read at random, {storage.random_readers} readers",
            quantity.scaled(storage.random_bytes_per_second, "B/s"),
            random,
        ),
        ("one small read", quantity.seconds(storage.small_read_seconds), "4 KiB at random"),
        ("written", quantity.scaled(storage.write_bytes_per_second, "B/s"), "until on the disk"),
        ("page cache", storage.cache, ""),
    ]
    title = f"Measured disk below {storage.folder} ({storage.date})"
    return doc.Chapter(title, [_untitled(rows)])


def links_document(found: LinkRates) -> doc.ReportDocument:
    """The links of a job, and its collectives beside what theory says of them."""
    ways = [
        (
            f"{one.source} → {one.target}",
            quantity.seconds(one.latency_seconds),
            quantity.scaled(one.bytes_per_second, "B/s"),
        )
        for one in found.neighbours
    ]
    times = [
        (
            one.operation,
            quantity.binary_memory(one.buffer_bytes),
            quantity.seconds(one.seconds),
            quantity.seconds(one.foretold_seconds),
            f"{one.seconds / one.foretold_seconds:.2f}",
        )
        for one in found.collectives
    ]
    heads = (doc.words("ranks"), *doc.figures("latency", "one way"))
    columns = (doc.words("collective"), *doc.figures("buffer", "measured", "foretold", "ratio"))
    foretold = (
        "Foretold: a ring over the slowest of these links, all of them busy at once and nothing "
        "else shared. Ranks on one CPU share its cores and its memory, and take longer."
    )
    title = f"Links of {found.num_ranks} ranks over {found.backend} ({found.device_name})"
    return doc.ReportDocument(
        title,
        [
            doc.DataTable(heads, ways, title="Point to point"),
            doc.DataTable(columns, times, title="Collectives"),
            doc.Paragraph(foretold),
        ],
    )


def _untitled(rows: Sequence[Sequence[doc.Cell]]) -> doc.DataTable:
    return doc.DataTable(
        (doc.words("what", ""), doc.Column("value", ""), doc.words("note", "")), rows
    )


def devices_document(
    devices: Sequence[Device],
    usd: Mapping[str, float | None],
    *,
    links: Sequence[Link],
    nodes: Sequence[Node],
) -> doc.ReportDocument:
    """Every device, link and node on record; `usd` is the typical price of an hour, by name."""
    rows = []
    for part in devices:
        price = usd[part.name]
        peaks = (part.peaks.get(dtype) for dtype in ("fp32", part.training_dtype, "fp8"))
        rows.append(
            (
                part.name,
                *(None if rate is None else f"{rate / 1e12:.4g}" for rate in peaks),
                f"{part.memory.capacity_bytes / 2**30:g}",
                f"{part.memory.bandwidth_bytes_per_second / 1e12:.3g}",
                f"{part.ridge_flops_per_byte():.0f}",
                None if part.power is None else f"{part.power.watts:g}",
                None if price is None else f"{price:.2f}",
            )
        )
    title = "Dense peaks in TFLOP/s, memory in GiB and TB/s, ridge point in FLOP/byte"
    heads = doc.figures("fp32", "16 bit", "fp8", "GiB", "TB/s", "ridge", "W", "$/h")
    listed = doc.DataTable((doc.words("device"), *heads), rows, title=title)
    return doc.ReportDocument("Devices", [listed, _links_table(links), _nodes_table(nodes)])


def _links_table(links: Sequence[Link]) -> doc.DataTable:
    rows = [
        (
            one.name,
            one.kind,
            f"{one.bandwidth_bytes_per_second / 1e9:.4g}",
            None if one.latency_seconds is None else f"{one.latency_seconds * 1e6:.3g}",
        )
        for one in links
    ]
    heads = (doc.words("link"), doc.words("kind"), *doc.figures("GB/s", "µs"))
    return doc.DataTable(heads, rows, title="Links, each one and in one direction")


def _nodes_table(nodes: Sequence[Node]) -> doc.DataTable:
    rows = [(node.name, _surroundings(node)) for node in nodes]
    return doc.DataTable((doc.words("node"), doc.words("what it is")), rows, title="Typical nodes")


def _surroundings(node: Node) -> str:
    """How many a fast fabric joins, over what, and the network cards of them all."""
    over = "their own links" if node.fabric is None else node.fabric
    many = f"{node.domain_size} joined by {over}" if node.domain_size > 1 else "one"
    hosts = "" if node.host_size is None else f", {node.host_size} to a host"
    return f"{many}{hosts}, {node.network_links} x {node.network}"


def device_document(
    part: Device, *, links: Mapping[str, float], prices: Sequence[Price], node: Node
) -> doc.ReportDocument:
    """One device with the source of each figure; `links` are bytes per second, by name."""
    memory, chip = part.memory, part.chip
    rows: list[tuple[str, str, str]] = [
        (f"{dtype}, dense", f"{rate / 1e12:,.4g} Top/s", part.peak_flops_per_second.source)
        for dtype, rate in part.peaks.items()
    ]
    size = f"{quantity.binary_memory(memory.capacity_bytes)} {memory.kind}"
    rows.append(("memory", size, memory.source))
    if memory.reported_bytes is not None:
        usable = f"{quantity.binary_memory(memory.reported_bytes)} as the driver reports it"
        rows.append(("", usable, memory.reported_source or ""))
    rows.append(("", quantity.scaled(memory.bandwidth_bytes_per_second, "B/s"), memory.source))
    ridge = f"{part.ridge_flops_per_byte():.1f} FLOP/byte"
    rows.append(("ridge point", ridge, part.ridge_dtype))
    if chip.num_units is not None:
        rows.append(("compute units", f"{chip.num_units} {chip.unit}", chip.source))
    sizes = {
        "shared per unit": chip.shared_bytes_per_unit,
        "L1 per unit": chip.l1_bytes_per_unit,
        "L2": chip.l2_bytes,
        "L3": chip.l3_bytes,
    }
    for name, held in sizes.items():
        if held is not None:
            rows.append((name, quantity.binary_memory(held), chip.source))
    if part.power is not None:
        rows.append(("power", f"{part.power.watts:g} W", part.power.source))
    for mode in part.modes:
        kept = f"{mode.num_units} {chip.unit} at {mode.clock_hz / 1e6:.0f} MHz"
        moved = quantity.scaled(mode.bandwidth_bytes_per_second, "B/s")
        rows.append(("power mode", f"{mode.watts:g} W: {kept}, {moved}", mode.source))
    for one in part.interconnects:
        rate = quantity.scaled(links[one.link] * one.count, "B/s")
        rows.append(("interconnect", f"{one.count} x {one.link}, {rate} per direction", one.source))
    for price in prices:
        text = f"{quantity.usd(price.usd_per_device_hour)} per hour, {price.provider}"
        rows.append(("price", f"{text}, {price.terms}", price.date))
    rows.append(("typical node", _surroundings(node), node.source))
    if part.notes:
        rows.append(("note", part.notes, ""))
    rows += [("assumed", sentence, "") for sentence in part.assumed]
    for key, source in part.sources.items():
        rows.append((key, f"{source.title}: {source.where}", source.date))
    columns = (doc.words("what", ""), doc.words("value", ""), doc.words("source", ""))
    title = f"{part.name} ({part.vendor} {part.architecture}, {part.year})"
    return doc.ReportDocument(part.name, [doc.DataTable(columns, rows, title=title)])


def kernels_document(found: dict[str, Any]) -> doc.ReportDocument:
    """The libraries of kernels; `found` is the JSON document (`docs/reference/kernels.md`)."""
    rows: list[tuple[doc.Cell, ...]] = []
    for name, made in found["libraries"].items():
        if made is None:
            rows.append((name, "–", "not yet", "", ""))
            continue
        size, took = quantity.binary_memory(made.bytes), quantity.seconds(made.seconds)
        threads = "torch's pool" if made.parallel else "one"
        rows.append((name, size, took, threads, made.compiler))
    columns = (
        doc.words("library"),
        doc.Column("size"),
        doc.Column("compiled in"),
        doc.words("threads"),
        doc.words("compiler"),
    )
    native = found["target"] == "native"
    made_for = found["cpu"] if native else f"the target {found['target']}"
    title = f"CPU kernels for {made_for}, in {found['folder']}"
    return doc.ReportDocument("CPU kernels", [doc.DataTable(columns, rows, title=title)])
