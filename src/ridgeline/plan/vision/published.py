"""Read a table of published runs of vision models: what ran, on what, how fast.

Empty cells are filled by rule, never by looking at the value:

- Metric: a note that says to check its unit makes a row insufficient.
- Batch: of an Offline scenario of MLPerf `OFFLINE_BATCH`; otherwise a blank makes a row
  insufficient.
- Image size: the one that the model's authors use.
- Precision: `uint8` is int8; of 32 bits ncnn and OpenVINO make 16 on a processor that has a rate
  for them. 32 bits on tensor cores of Ampere and newer are TF32 in PyTorch, Paddle and TensorRT.
- Layout: contiguous, unless stated.
- Several devices: the batch is that of one, the rate that of all.

Which class a piece of software is in stands in `software.toml`, what a device is called there in
`names.toml`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ridgeline.cost.vision.setting import MATRIX_DTYPES, MemoryFormat, VisionJob, VisionSetting
from ridgeline.cost.vision.work import is_processor
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.presets import load_network
from ridgeline.plan.table_cells import Unreadable, positive, read_cells, whole
from ridgeline.plan.vision.data_parallel import compute_within, step_on
from ridgeline.records.input_file import read_toml

COLUMNS = (
    "source", "model", "family", "input_hw", "batch", "precision", "memory_format", "software",
    "task", "gpu", "n_gpus", "metric_name", "metric_value",
)  # fmt: skip
"""Columns without which a table cannot be read; cells may be empty."""
UNFUSED = r"PyTorch [01]\.|Paddle"
"""Software without a fused kernel of attention: PyTorch has one since 2.0."""
OFFLINE_BATCH = 256
"""Images of a batch where the submitter chose it for throughput."""
MOST_OFF = 0.15
"""Share by which a table's MACs may differ from the network's of that name."""
FOLDER = Path(__file__).parent


class SoftwareClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Software that works alike."""

    name: str
    pattern: str
    one_by_one: bool = False
    """A query of several images is answered image by image, and the time of one is stated."""
    halves: bool = False
    """Unless told otherwise it makes 16 bits of 32 where a processor has a rate for them."""
    leaves_to_host: tuple[str, ...] = ()
    """Functions that it has no kernel for: the host's processor runs them, which is not named."""
    host_for_8_bits: str = ""
    """Class of software, on the host's processor, that runs a network of 8 bits instead."""


class SoftwareFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `software.toml`."""

    software: tuple[SoftwareClass, ...]


class Spelling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name as tables write it, and ours."""

    pattern: str
    name: str


class SpellingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `names.toml`."""

    device: tuple[Spelling, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVision:
    """One row that can be predicted."""

    row: int
    source: str
    model: str
    family: str
    gpu: str
    num_devices: int
    metric: str
    published: float
    """In the row's own metric."""
    network: VisionNetwork
    device: Device
    setting: VisionSetting

    @property
    def seconds(self) -> float:
        """The published time of one batch on one device, without what devices exchange."""
        step = self._step_or_rate(self.published)
        cluster = self._exchanging()
        return step if cluster is None else compute_within(cluster, self.network, step)

    def in_metric(self, seconds: float) -> float:
        """One device's time of a batch, and what devices exchange, in the row's own metric."""
        cluster = self._exchanging()
        step = seconds if cluster is None else step_on(cluster, self.network, seconds).seconds
        return 1e3 * step if self.metric == "latency_ms" else self._step_or_rate(step)

    def _step_or_rate(self, value: float) -> float:
        """Seconds of a step from a value in the row's own metric; its own inverse for rates."""
        if self.metric == "latency_ms":
            return value * 1e-3
        return self.setting.batch * self.num_devices / value

    def _exchanging(self) -> Cluster | None:
        """The devices that reduce their gradients in every step."""
        if self.setting.task != "train" or self.num_devices == 1:
            return None
        return parse_cluster(f"{self.num_devices}x{self.device.name}")


def read_table(path: Path) -> list[PublishedVision | Unreadable]:
    """Every row of a table, in order.

    Raises:
        InputError: It is no such table.
    """
    cells = read_cells(path, COLUMNS)
    return [read_row(number, one) for number, one in enumerate(cells, start=1)]


def read_row(number: int, cells: Mapping[str, str]) -> PublishedVision | Unreadable:
    """One row, or why it cannot be predicted."""
    try:
        return _published(number, cells)
    except InputError as error:
        return Unreadable(row=number, cells=cells, status="refused", reason=str(error))
    except _TooLittle as error:
        return Unreadable(row=number, cells=cells, status="insufficient", reason=str(error))


class _TooLittle(Exception):
    """A row that says too little."""


def _published(number: int, cells: Mapping[str, str]) -> PublishedVision:
    metric = cells["metric_name"]
    if metric not in ("img_per_s", "latency_ms"):
        raise InputError(f"metric_name is {metric!r}; use img_per_s or latency_ms")
    value = positive(cells["metric_value"])
    if value is None:
        raise InputError(f"metric_value is {cells['metric_value']!r}; it must be above 0")
    device = _device(cells["gpu"])
    software = software_class(cells["software"])
    if software.host_for_8_bits and cells["precision"] in ("int8", "uint8"):
        device, software = _host_of(device), software_named(software.host_for_8_bits)
    network = _network(cells["model"], cells["input_hw"])
    _same_network(network, cells.get("gmacs", ""))
    left = {one.function for one in network.operators} & {*software.leaves_to_host}
    if left and not is_processor(device):
        raise _TooLittle(
            f"{sorted(left)[0]} runs on the host's processor there, which is not named"
        )
    note = cells.get("note", "")
    if "check unit" in note:
        raise _TooLittle("the table itself doubts the unit of its metric")
    batch = _batch(cells, software)
    if metric == "latency_ms":
        middle = re.search(r"\bp50=([\d.]+)ms", note)
        value = value if middle is None else float(middle[1])
        value = value * batch if "per image" in note else value
    return PublishedVision(
        row=number,
        source=cells["source"],
        model=cells["model"],
        family=cells["family"],
        gpu=cells["gpu"],
        num_devices=max(1, int(positive(cells["n_gpus"]) or 1)),
        metric=metric,
        published=value,
        network=network,
        device=device,
        setting=VisionSetting(
            task=_job(cells["task"]),
            batch=batch,
            precision=_precision(cells["precision"], device, software),
            memory_format=_layout(cells["memory_format"]),
            software=software.name,
            fused_attention=re.search(UNFUSED, cells["software"]) is None,
            threads=_threads(note),
        ),
    )


def software_class(text: str) -> SoftwareClass:
    """The class of a piece of software.

    Raises:
        InputError: It is in none.
    """
    for one in _software():
        if re.search(one.pattern, text):
            return one
    raise InputError(f"software {text!r} is in no class that is known")


def software_named(name: str) -> SoftwareClass:
    """The class of software with that name."""
    return next(one for one in _software() if one.name == name)


def _host_of(device: Device) -> Device:
    """The processor of a module; that of a machine into which a card is put is not known."""
    try:
        return catalogue.device(f"{device.name}-CPU")
    except InputError:
        raise _TooLittle("8 bits run on the host's processor there, which is not named") from None


def _device(text: str) -> Device:
    found = _read_device(text)
    if isinstance(found, InputError):
        raise found
    return found


@functools.cache
def _read_device(text: str) -> Device | InputError:
    try:
        return catalogue.device(_ours(text, _spellings().device))
    except InputError as error:
        return error


def _network(model: str, size: str) -> VisionNetwork:
    found = _read_network(model, size)
    if isinstance(found, InputError):
        raise found
    return found


@functools.lru_cache(maxsize=4096)
def _read_network(model: str, size: str) -> VisionNetwork | InputError:
    """The network, or why there is none: thousands of rows ask for the same ones."""
    try:
        return _sized_network(model, size)
    except InputError as error:
        return error


def _sized_network(model: str, size: str) -> VisionNetwork:
    if not size:
        return load_network(model)
    match = re.fullmatch(r"(\d+)x(\d+)", size)
    if match is None:
        raise InputError(f"input_hw is {size!r}; write height and width, such as 224x224")
    return load_network(model, (int(match[1]), int(match[2])))


def _same_network(network: VisionNetwork, text: str) -> None:
    """Refuse a row whose MACs are not the network's: it is another one of that name."""
    stated, own = positive(text), network.published_macs / 1e9
    if stated is not None and stated > 0.1 and abs(own / stated - 1.0) > MOST_OFF:
        raise InputError(
            f"{network.name}: {stated:g} GMACs stated, {own:.2f} counted; not the same network"
        )


def _ours(text: str, spellings: tuple[Spelling, ...]) -> str:
    for one in spellings:
        match = re.fullmatch(one.pattern, text)
        if match is not None:
            return match.expand(one.name)
    return text


def _batch(cells: Mapping[str, str], software: SoftwareClass) -> int:
    note = cells.get("note", "").casefold()
    if software.one_by_one and "multistream" in note:
        return 1
    batch = whole(cells, "batch")
    if batch is not None:
        return batch
    if "scenario offline" in note:
        return OFFLINE_BATCH
    raise _TooLittle("batch is not stated")


def _job(text: str) -> VisionJob:
    if text == "infer":
        return "infer"
    if text == "train":
        return "train"
    raise InputError(f"task is {text!r}; use infer or train")


def _layout(text: str) -> MemoryFormat:
    return "channels_last" if text == "channels_last" else "contiguous"


def _precision(text: str, device: Device, software: SoftwareClass) -> str:
    wide = "tf32" if "tf32" in device.peaks else "fp32"
    half = "fp16" if "fp16" in device.peaks else "fp32"
    if software.halves and is_processor(device):
        wide = half
    known = {"uint8": "int8", "fp32_or_tf32": wide, "fp32": wide, "tf32": wide}
    found = half if text.startswith("ncnn default") else known.get(text, text)
    if found not in MATRIX_DTYPES:
        raise InputError(f"precision {text!r}: use one of {', '.join(MATRIX_DTYPES)}")
    return found


def _threads(note: str) -> int | None:
    match = re.search(r"threads (\d+)", note)
    return None if match is None else max(1, int(match[1]))


@functools.cache
def _software() -> tuple[SoftwareClass, ...]:
    return read_toml(FOLDER / "software.toml", SoftwareFile).software


@functools.cache
def _spellings() -> SpellingFile:
    return read_toml(FOLDER / "names.toml", SpellingFile)
