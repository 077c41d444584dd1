"""`ridgeline hardware`: what this machine is, what it can do, and facts about devices."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ridgeline.hardware import catalogue
from ridgeline.hardware.ceilings import Ceilings, read_cache, save_ceilings
from ridgeline.hardware.facts import Device
from ridgeline.hardware.machine import Machine, this_machine
from ridgeline.measure import probe as probing
from ridgeline.report.fitted_table import FittedTable


def hardware(
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure this machine's real ceilings now (~15 s).")
    ] = False,
    device: Annotated[
        str | None, typer.Option("--device", metavar="NAME", help="Facts about one device.")
    ] = None,
    list_devices: Annotated[
        bool, typer.Option("--list", help="Every device that we have facts about.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output.")
    ] = False,
) -> None:
    """What this machine is; --probe measures what it can do."""
    devices: list[Device] | None = None
    if device is not None:
        devices = [catalogue.device(device)]
    elif list_devices:
        devices = catalogue.devices()
    machine = this_machine()
    ceilings = _probe() if probe else _cached(machine)
    if json_output:
        encoded = msgspec.json.encode(document(machine, ceilings, devices))
        sys.stdout.write(msgspec.json.format(encoded, indent=1).decode() + "\n")
        return
    console = Console()
    if device is not None and devices is not None:
        console.print(_one_device(devices[0]))
    elif devices is not None:
        console.print(_device_list(devices))
    if devices is None or probe:
        console.print(_machine_table(machine))
        if ceilings is not None:
            console.print(_ceilings_table(ceilings))
        else:
            console.print("Ceilings: not measured yet; run: ridgeline hardware --probe")


def document(
    machine: Machine, ceilings: Ceilings | None, devices: list[Device] | None
) -> dict[str, Any]:
    """The JSON document; its keys are a contract (`docs/reference/hardware.md`)."""
    described = msgspec.to_builtins(machine)
    gpus = described.pop("gpus")
    whole = {"machine": described, "gpus": gpus, "ceilings": msgspec.to_builtins(ceilings)}
    if devices is not None:
        whole["devices"] = [
            {
                **msgspec.to_builtins(part),
                "training_dtype": part.training_dtype,
                "ridge_flops_per_byte": part.ridge_flops_per_byte(),
                "peer_bandwidth_bytes_per_second": catalogue.peer_bandwidth_bytes_per_second(part),
                "prices": msgspec.to_builtins(catalogue.prices(part.name)),
            }
            for part in devices
        ]
    return whole


def _probe() -> Ceilings:
    """Measure with a progress bar on standard error, and remember the result."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("probing", total=1.0)
        measured = probing.probe(
            lambda what, fraction: bar.update(task, description=what, completed=fraction),
            probing.default_device(),
        )
    if measured.busy:
        console.print(
            "The machine was busy: the probe got "
            f"{measured.cpu_time_share or 0:.0%} of the CPU time it asked for; "
            "the rates are too low. Probe again when it is quiet."
        )
    try:
        save_ceilings(measured)
    except OSError as error:
        console.print(f"Not cached: {error}")
    return measured


def _cached(machine: Machine) -> Ceilings | None:
    lookup = read_cache("cuda" if machine.gpus else "cpu", machine)
    if lookup.problem is not None:
        Console(stderr=True).print(f"Ignored {lookup.problem}; --probe replaces it.")
    return lookup.ceilings


def _machine_table(machine: Machine) -> FittedTable:
    cpu = machine.cpu
    table = FittedTable(title="This machine", show_header=False, title_justify="left")
    table.add_row("CPU", f"{cpu.model} ({cpu.architecture})")
    table.add_row(
        "Cores",
        f"{cpu.num_usable_cores} usable of {cpu.num_logical_cores} logical, "
        f"{cpu.num_physical_cores} physical, {cpu.num_sockets} socket(s)",
    )
    if cpu.cgroup_cores is not None:
        table.add_row("Cgroup quota", f"{cpu.cgroup_cores:g} cores")
    table.add_row("ISA", " ".join(cpu.isa) or "unknown")
    caches = (
        f"L{cache.level} {cache.kind.lower()} {_binary(cache.size_bytes)} x {cache.num_instances}"
        for cache in cpu.caches
    )
    table.add_row("Caches", ", ".join(caches) or "unknown")
    limit = machine.memory_limit_bytes
    suffix = "" if limit is None else f", of which the cgroup grants {_binary(limit)}"
    table.add_row("Memory", _binary(machine.memory_bytes) + suffix)
    for gpu in machine.gpus:
        known = "" if gpu.device is None else f" = {gpu.device}"
        memory = "" if gpu.memory_bytes is None else f", {_binary(gpu.memory_bytes)}"
        table.add_row(f"GPU {gpu.index}", f"{gpu.name}{known}{memory}")
    if not machine.gpus:
        table.add_row("GPU", "none found")
    for note in machine.notes:
        table.add_row("Note", note)
    return table


def _ceilings_table(ceilings: Ceilings) -> FittedTable:
    effort = "quick" if ceilings.quick else "full"
    title = f"Measured ceilings of {ceilings.device_name} ({effort} probe, {ceilings.date})"
    table = FittedTable(title=title, show_header=False, title_justify="left")
    for kind, rate in ceilings.matmul_flops_per_second.items():
        note = ceilings.skipped.get(kind, f"n = {ceilings.matmul_sizes[kind]}")
        table.add_row(f"matmul {kind}", _rate(rate, "op/s"), note)
    for kind in ceilings.skipped.keys() - ceilings.matmul_flops_per_second.keys():
        table.add_row(f"matmul {kind}", "-", ceilings.skipped[kind])
    buffer = f"buffers of {_binary(ceilings.bandwidth_buffer_bytes)}"
    for pattern, rate in ceilings.bandwidth_by_pattern.items():
        table.add_row(f"memory {pattern}", _rate(rate, "B/s"), buffer)
    for count, rate in ceilings.bandwidth_by_threads.items():
        table.add_row(f"memory, {count} thread(s)", _rate(rate, "B/s"), "best pattern")
    table.add_row("operator dispatch", _micro(ceilings.dispatch_seconds), "forward")
    table.add_row("", _micro(ceilings.dispatch_autograd_seconds), "forward, recorded")
    table.add_row("", _micro(ceilings.dispatch_backward_seconds), "backward")
    if ceilings.launch_seconds is not None:
        table.add_row("kernel launch", _micro(ceilings.launch_seconds), "queued back to back")
    copies = {
        "host to device, pinned": ceilings.host_to_device_pinned_bytes_per_second,
        "host to device, pageable": ceilings.host_to_device_pageable_bytes_per_second,
        "device to host, pinned": ceilings.device_to_host_pinned_bytes_per_second,
        "device to host, pageable": ceilings.device_to_host_pageable_bytes_per_second,
    }
    for name, copied in copies.items():
        if copied is not None:
            table.add_row(name, _rate(copied, "B/s"), "")
    if ceilings.busy:
        table.add_row("Note", "", "the machine was busy: the rates are too low; probe again")
    return table


def _device_list(devices: list[Device]) -> FittedTable:
    title = "Dense peaks in TFLOP/s, memory in GiB and TB/s, ridge point in FLOP/byte"
    table = FittedTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("device", no_wrap=True)
    for heading in ("fp32", "16 bit", "fp8", "GiB", "TB/s", "ridge", "W", "$/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in devices:
        price = catalogue.typical_usd_per_device_hour(part.name)
        table.add_row(
            part.name,
            *(_tera(part.peaks.get(dtype)) for dtype in ("fp32", part.training_dtype, "fp8")),
            f"{part.memory.capacity_bytes / 2**30:g}",
            f"{part.memory.bandwidth_bytes_per_second / 1e12:.3g}",
            f"{part.ridge_flops_per_byte():.0f}",
            "-" if part.power is None else f"{part.power.watts:g}",
            "-" if price is None else f"{price:.2f}",
        )
    return table


def _one_device(part: Device) -> FittedTable:
    table = FittedTable(
        title=f"{part.name} ({part.vendor} {part.architecture}, {part.year})",
        show_header=False,
        title_justify="left",
    )
    for dtype, rate in part.peaks.items():
        table.add_row(f"{dtype}, dense", _rate(rate, "op/s"), part.peak_flops_per_second.source)
    memory, chip = part.memory, part.chip
    table.add_row("memory", f"{_binary(memory.capacity_bytes)} {memory.kind}", memory.source)
    if memory.reported_bytes is not None:
        usable = f"{_binary(memory.reported_bytes)} as the driver reports it"
        table.add_row("", usable, memory.reported_source or "")
    table.add_row("", _rate(memory.bandwidth_bytes_per_second, "B/s"), memory.source)
    ridge = f"{part.ridge_flops_per_byte():.1f} FLOP/byte"
    table.add_row("ridge point", ridge, part.training_dtype)
    if chip.num_units is not None:
        table.add_row("compute units", f"{chip.num_units} {chip.unit}", chip.source)
    sizes = {
        "shared per unit": chip.shared_bytes_per_unit,
        "L1 per unit": chip.l1_bytes_per_unit,
        "L2": chip.l2_bytes,
        "L3": chip.l3_bytes,
    }
    for name, size in sizes.items():
        if size is not None:
            table.add_row(name, _binary(size), chip.source)
    if part.power is not None:
        table.add_row("power", f"{part.power.watts:g} W", part.power.source)
    for connection in part.interconnects:
        rate = catalogue.link(connection.link).bandwidth_bytes_per_second * connection.count
        text = f"{connection.count} x {connection.link}, {_rate(rate, 'B/s')} per direction"
        table.add_row("interconnect", text, connection.source)
    for price in catalogue.prices(part.name):
        text = f"${price.usd_per_device_hour:.2f} per hour, {price.provider}, {price.terms}"
        table.add_row("price", text, price.date)
    if part.notes:
        table.add_row("note", part.notes, "")
    for key, source in part.sources.items():
        table.add_row(key, f"{source.title}: {source.where}", source.date)
    return table


def _tera(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e12:.4g}"


def _rate(value: float, unit: str) -> str:
    for scale, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _binary(size_bytes: int) -> str:
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes} B"


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} µs"
