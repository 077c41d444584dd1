"""The shapes of a hardware fact: device, link, price, and the source that each number has.

Peaks are dense: what a vendor prints "with sparsity" is halved before it is written down. Rates
of matrix units accumulate in fp32 (int8 in int32) unless a device's `notes` say otherwise.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.errors import InputError

DTYPES = (
    "fp64",
    "fp64_tensor",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "fp8",
    "int8",
    "fp6",
    "fp4",
)
"""The dtypes that have a peak of their own. `fp64` and `fp32` are those of the vector
units; the others, with `fp64_tensor`, of the matrix units."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is read from the TOML files: immutable, and strict about unknown keys."""


class Source(Fact, frozen=True, kw_only=True):
    """Where a number comes from."""

    title: str
    """Title of the datasheet, paper or page."""
    where: str
    """Section, table or page in it."""
    url: str
    date: str
    """Date of the document, or of its reading: `2023`, `2023-03` or `2023-03-21`."""


class Peaks(Fact, frozen=True, kw_only=True):
    """Dense operations per second by dtype; None: the device has no such units."""

    source: str
    fp64: float | None = None
    fp64_tensor: float | None = None
    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    int8: float | None = None
    fp6: float | None = None
    fp4: float | None = None


class Memory(Fact, frozen=True, kw_only=True):
    """The device's own memory."""

    source: str
    kind: str
    """HBM3, GDDR6X, LPDDR5, …"""
    capacity_bytes: int
    """The vendor's "GB" read as GiB (2**30), which is what the parts hold."""
    bandwidth_bytes_per_second: float
    """Both directions together, as the vendor prints it (1 GB/s = 1e9 bytes per second)."""
    reported_bytes: int | None = None
    """Total that the driver reports: capacity less what firmware and ECC keep."""
    reported_source: str | None = None

    @property
    def usable_bytes(self) -> int:
        """What a program can hope for: the driver's figure where it is known."""
        return self.capacity_bytes if self.reported_bytes is None else self.reported_bytes


class Chip(Fact, frozen=True, kw_only=True):
    """Compute units and on-chip memory. None: not published, or not checked by us."""

    source: str
    unit: str
    """What the vendor calls one compute unit: SM, CU, TPC, TensorCore."""
    num_units: int | None = None
    clock_hz: float | None = None
    """The clock at which the peaks hold; where the part has power modes, that of the highest."""
    shared_bytes_per_unit: int | None = None
    """The most that kernels can use as shared memory (LDS) on one unit."""
    l1_bytes_per_unit: int | None = None
    """On NVIDIA parts the whole of which shared memory is cut."""
    l2_bytes: int | None = None
    l3_bytes: int | None = None
    """A memory-side cache behind L2 (AMD Infinity Cache)."""
    host_core_flops_per_second: float | None = None
    """fp32 FLOP/s of one core of the processor on the same module; None for cards."""
    logical_devices: int = 1
    """Devices that PyTorch sees on one part; peaks and memory are for the whole part."""


class Power(Fact, frozen=True, kw_only=True):
    """How much the part may draw."""

    source: str
    watts: float
    """Thermal design power, or the top of a configurable range."""


class PowerMode(Fact, frozen=True, kw_only=True):
    """A limit of power that the vendor configures: what stays switched on, and how fast."""

    source: str
    watts: float
    num_units: int
    """Compute units that stay switched on."""
    clock_hz: float
    """The highest clock of those units."""
    bandwidth_bytes_per_second: float


class Interconnect(Fact, frozen=True, kw_only=True):
    """`count` links of one kind on the device."""

    source: str
    link: str
    """The link's name, in `links.toml` or in the same file."""
    count: int = 1


class Node(Fact, frozen=True, kw_only=True):
    """A domain of devices as it is usually built, with its network cards."""

    name: str
    devices: list[str] = []
    """Canonical names of the devices that it is built of; in a device's own table that device."""
    domain_size: int
    host_size: int | None = None
    """Devices of one host, where a domain spans several; None: the whole domain is one host."""
    box_size: int | None = None
    """Devices of one machine, where the fabric joins only some of them: the others are reached over
    the host's link."""
    fabric: str | None = None
    """The link that joins the domain; None: the device's own fabric links."""
    linked_peers: int = 1
    """Peers among which a device's fabric links are split for good, as many to each; 1: a switch,
    through which all of them reach any peer."""
    network: str
    """Name of a network link."""
    network_links: int
    """Network cards of the whole domain."""
    notes: str = ""
    source: str


class Device(Fact, frozen=True, kw_only=True):
    """One accelerator, as sold."""

    name: str
    vendor: str
    architecture: str
    target: str
    """What compilers call it: a CUDA compute capability (`9.0`), a gfx name; else empty."""
    year: int
    """The year of first shipment."""
    aliases: list[str] = []
    """Other names that people use; case, blanks, `_` and `-` do not matter."""
    cuda_names: list[str] = []
    """Names that the driver reports (nvidia-smi, CUDA, rocm-smi), in full."""
    peak_flops_per_second: Peaks
    memory: Memory
    chip: Chip
    power: Power | None = None
    modes: list[PowerMode] = []
    """Power modes below the one that the figures above are of."""
    node: Node | None = None
    """What usually surrounds it, where that is not one of the nodes in `nodes.toml`."""
    interconnects: list[Interconnect] = []
    notes: str = ""
    variant_of: str = ""
    """Filled on look-up by such a name: the part in the catalogue that it was made of."""
    assumed: list[str] = []
    """Filled on look-up by a name that says more than the catalogue: what it left open."""
    sources: dict[str, Source] = {}
    """Filled on loading from the file's `[sources]`: those that this device refers to."""

    def peak(self, dtype: str) -> float:
        """Dense operations per second for `dtype`, one of `DTYPES`.

        >>> from ridgeline.hardware import device
        >>> device("h200").peak("bf16")
        989400000000000.0
        """
        if dtype not in DTYPES:
            raise InputError(f"{dtype}: not a known dtype; use one of {', '.join(DTYPES)}")
        rate: float | None = getattr(self.peak_flops_per_second, dtype)
        if rate is None:
            known = ", ".join(self.peaks)
            raise InputError(f"{self.name} has no published {dtype} rate; it has {known}")
        return rate

    @property
    def peaks(self) -> dict[str, float]:
        """The dtypes that the device has, with their dense rates."""
        rates = self.peak_flops_per_second
        return {name: rate for name in DTYPES if (rate := getattr(rates, name)) is not None}

    @property
    def training_dtype(self) -> Literal["bf16", "fp16", "fp32"]:
        """The dtype that mixed-precision training uses here; fp32 where 16 bits have no rate."""
        if "bf16" in self.peaks:
            return "bf16"
        return "fp16" if "fp16" in self.peaks else "fp32"

    @property
    def ridge_dtype(self) -> str:
        """The dtype of the ridge point: that of training, else the widest that has a rate."""
        known = self.peaks
        return self.training_dtype if self.training_dtype in known else next(iter(known))

    def ridge_flops_per_byte(self, dtype: str | None = None, *, headline: bool = False) -> float:
        """Arithmetic intensity above which compute, not memory, is the limit.

        `headline` first rounds the bandwidth to a tenth of a TB/s, as most published tables of
        ridge points do.

        >>> from ridgeline.hardware import device
        >>> round(device("h100").ridge_flops_per_byte())
        295
        >>> round(device("h100").ridge_flops_per_byte(headline=True))
        291
        """
        bandwidth = self.memory.bandwidth_bytes_per_second
        if headline:
            bandwidth = round(bandwidth / 1e12, 1) * 1e12
            if bandwidth == 0.0:
                raise InputError(f"{self.name}: its bandwidth rounds to 0.0 TB/s; drop headline")
        return self.peak(dtype or self.ridge_dtype) / bandwidth


class Link(Fact, frozen=True, kw_only=True):
    """One kind of connection between devices, or between device and host or network."""

    name: str
    kind: str
    """`fabric` (device to device), `host` (device to host) or `network` (node to node)."""
    bandwidth_bytes_per_second: float
    """Per link and direction, after line coding."""
    latency_seconds: float | None = None
    """Typical cost of one step of a collective over it; None: no source that we trust."""
    aliases: list[str] = []
    source: str
    latency_source: str | None = None
    sources: dict[str, Source] = {}
    """Filled on loading, as for `Device`."""


class Price(Fact, frozen=True, kw_only=True):
    """What a provider asked for one device on a day. Prices move: mind the date."""

    device: str
    provider: str
    usd_per_device_hour: float
    terms: str
    """`on-demand`, `spot`, `reserved`, or what the source averages over."""
    date: str
    region: str = ""
    source: str
    sources: dict[str, Source] = {}
    """Filled on loading, as for `Device`."""


class DeviceFile(Fact, frozen=True, kw_only=True):
    """One file of `devices/`: a family that shares its sources."""

    sources: dict[str, Source]
    link: list[Link] = []
    """Links that no other family has; the others stand in `links.toml`."""
    device: list[Device]


class LinkFile(Fact, frozen=True, kw_only=True):
    """The content of `links.toml`."""

    sources: dict[str, Source]
    link: list[Link]


class PriceFile(Fact, frozen=True, kw_only=True):
    """The content of `prices.toml`."""

    sources: dict[str, Source]
    price: list[Price]
