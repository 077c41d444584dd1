"""`ridgeline hardware` says what this machine is, what it can do, and what devices can."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ridgeline.cli.show import Json, print_document, print_json, say, show_answer
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.ceilings import Ceilings, read_cache, save_ceilings
from ridgeline.hardware.facts import Device
from ridgeline.hardware.machine import Machine, this_machine
from ridgeline.hardware.nodes import node_of, nodes
from ridgeline.hardware.storage import StorageRates, cached_storage, save_storage
from ridgeline.measure import links as link_probe
from ridgeline.measure import probe as probing
from ridgeline.measure.storage import probe_storage
from ridgeline.report.views.hardware import (
    device_document,
    devices_document,
    links_document,
    machine_document,
)


def hardware(
    probe: Annotated[
        bool, typer.Option("--probe", help="Measure this machine's real ceilings now (~15 s).")
    ] = False,
    disk: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder whose disk --probe measures (256 MiB file)."),
    ] = Path(),
    ranks: Annotated[
        int,
        typer.Option(
            min=0, help="With --probe: measure the links between so many ranks, nothing else."
        ),
    ] = 0,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="Facts about one device.")
    ] = None,
    list_devices: Annotated[
        bool, typer.Option("--list", help="Every device, link and typical node on record.")
    ] = False,
    json: Json = False,
) -> None:
    """What this machine is; --probe measures what it can do."""
    if ranks:
        _links(ranks, probe=probe, json=json)
        return
    devices: list[Device] | None = None
    if device is not None:
        devices = [catalogue.device(device)]
    elif list_devices:
        devices = catalogue.devices()
    machine = this_machine()
    storage = _probe_storage(disk) if probe else cached_storage(disk)
    ceilings = _probe() if probe else _cached(machine)
    if json:
        whole = document(machine, ceilings, storage, devices)
        if list_devices:
            whole |= msgspec.to_builtins({"links": catalogue.links(), "nodes": nodes()})
        print_json(whole)
        return
    if device is not None and devices is not None:
        links = {one.link: catalogue.link(one.link) for one in devices[0].interconnects}
        rates = {name: link.bandwidth_bytes_per_second for name, link in links.items()}
        prices = catalogue.prices(devices[0].name)
        node = node_of(devices[0])[0]
        print_document(device_document(devices[0], links=rates, prices=prices, node=node))
    elif devices is not None:
        usd = {one.name: catalogue.typical_usd_per_device_hour(one.name) for one in devices}
        known = devices_document(devices, usd, links=catalogue.links(), nodes=nodes())
        print_document(known)
    if devices is None or probe:
        print_document(machine_document(machine, ceilings, storage))


def document(
    machine: Machine,
    ceilings: Ceilings | None,
    storage: StorageRates | None,
    devices: list[Device] | None,
) -> dict[str, Any]:
    """The JSON document; its keys are a contract (`docs/reference/hardware.md`)."""
    described = msgspec.to_builtins(machine)
    gpus = described.pop("gpus")
    whole = {"machine": described, "gpus": gpus, "ceilings": msgspec.to_builtins(ceilings)}
    whole["storage"] = msgspec.to_builtins(storage)
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
        say(f"Not cached: {error}", err=True)
    return measured


def _probe_storage(folder: Path) -> StorageRates:
    rates = probe_storage(folder)
    try:
        save_storage(rates)
    except OSError as error:
        say(f"Not cached: {error}", err=True)
    return rates


def _links(num_ranks: int, *, probe: bool, json: bool) -> None:
    """Measure between ranks that we start, or as one of those that a launcher has started."""
    if not probe:
        raise InputError("--ranks measures: give --probe with it")
    started = link_probe.started_ranks()
    if started not in (None, num_ranks):
        raise InputError(f"--ranks {num_ranks}: the launcher has started {started}; give that many")
    alone = started is None
    found = link_probe.probe_links(num_ranks) if alone else link_probe.measure_as_rank()
    if found is None:
        return  # rank 0 says it
    show_answer({"link_rates": msgspec.to_builtins(found)}, links_document(found), json=json)


def _cached(machine: Machine) -> Ceilings | None:
    lookup = read_cache("cuda" if machine.gpus else "cpu", machine)
    if lookup.problem is not None:
        say(f"Ignored {lookup.problem}; --probe replaces it.", err=True)
    return lookup.ceilings
