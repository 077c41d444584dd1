"""Names of devices with more behind them: memory, kind of memory, power, a part of the package.

    RTX4090-24GB                 the part, where 24 GB is what it has
    H100-SXM-96GB-HBM2e-500W     the part with another memory and a lower limit of power
    MI250X-1GCD                  one of the devices that PyTorch sees on the package
    Orin-64GB-30W                a module in one of its power modes
    Orin 32, a100-80             the part that has so many GB: a bare number makes up no other

A name is read from its end, one word after another, until what is left is in the catalogue. What
each word changes is a fact of the name; what it leaves open is assumed, and said in
`Device.assumed`:

- memory of another size: the printed bandwidth, unless the name has another kind of memory too;
- HBM2e: 408 GB/s for each 16 GB, as of the A100-80GB (five stacks, 2,039 GB/s);
- a power mode that the vendor configures: the units and clocks of that mode, by its own table;
- any other limit of power below the printed one: rates fall with its square root, as clocks do
  where voltage follows them (dynamic power goes with the cube of the clock, but memory and leakage
  do not: the square root is what the A100 at 330 W in gpt-fast's README shows).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ridgeline.hardware.facts import Device, Power, PowerMode

SAME_SIZE = 0.07
"""How far a size in a name may be from the printed one, as a share: GB and GiB are 7 % apart."""
STACK_BYTES_PER_SECOND = {"hbm2e": 407.8e9}
"""What one stack of 16 GB moves: the A100-80GB's 2,039 GB/s over five stacks (a100.toml)."""
STACK_BYTES = 16 * 2**30


@dataclass(slots=True)
class Suffixes:
    """What stands behind a name."""

    gigabytes: float | None = None
    kind: str = ""
    watts: float | None = None
    dies: int | None = None
    words: list[str] = field(default_factory=list)

    def take(self, word: str) -> bool:
        """Whether a word is one of these; if so it is kept."""
        folded = word.lower()
        size = re.fullmatch(r"(\d+(?:\.\d+)?)gi?b|(\d{2,3})g", folded)  # 3g is a slice of a GPU
        power = re.fullmatch(r"(\d{2,4})w", folded)
        dies = re.fullmatch(r"(\d+)(?:x?gcd|die)s?", folded)
        if size:
            self.gigabytes = float(size[1] or size[2])
        elif power:
            self.watts = float(power[1])
        elif dies:
            self.dies = int(dies[1])
        elif re.fullmatch(r"hbm\d?e?|gddr\dx?|lpddr\dx?", folded):
            self.kind = word
        elif folded not in ("unspecified", "maxn", "sxm", "oam", "pcie", "gpu", "edition"):
            return False
        self.words.insert(0, word)
        return True


def read_name(name: str, known: Callable[[str], Device | None]) -> Device | None:
    """The device that a name with more behind it means; None: none.

    Args:
        name: As written.
        known: The device of a plain name; None where there is none.
    """
    joined = re.sub(r"(?<=\d)\s+(?=gi?b\b)", "", name.strip(), flags=re.IGNORECASE)
    words = [word for word in re.split(r"[\s_/()@-]+", joined) if word]
    # As joined it may be a plain name, which is no other part with a suffix.
    return (
        known("-".join(words)) or _read(name, words, known) or _with_bare_size(name, words, known)
    )


def _with_bare_size(
    name: str, words: list[str], known: Callable[[str], Device | None]
) -> Device | None:
    """The device of a name with a number that is the memory of a part that there is, in GB."""
    for place, word in enumerate(words[1:], start=1):
        if not re.fullmatch(r"\d{1,3}", word):
            continue
        before, sized = words[:place], f"{word}GB"
        part = known("-".join([*before, sized])) or known("-".join(before))
        if part is None or abs(int(word) * 2**30 / part.memory.capacity_bytes - 1.0) > SAME_SIZE:
            continue
        whole = [*before, sized, *words[place + 1 :]]
        device = known("-".join(whole)) or _read(name, whole, known)
        if device is not None:
            said = f"{word} in {name} is read as {word} GB of memory"
            return msgspec.structs.replace(device, assumed=[*device.assumed, said])
    return None


def _read(name: str, words: list[str], known: Callable[[str], Device | None]) -> Device | None:
    """The device of words, of which the last ones may be suffixes."""
    words, found = list(words), Suffixes()
    while words:
        base = known("-".join(words))
        if base is not None and found.words:
            return _changed(base, name, found)
        if not found.take(words.pop()):
            return None
    return None


def _changed(base: Device, name: str, found: Suffixes) -> Device:
    """A device with what its name says; the plain one where that changes nothing."""
    forms = [word for word in found.words if word.lower() in ("sxm", "oam", "pcie", "gpu")]
    assumed = [f"{name} is taken for {base.name}: no other form of it is known"] if forms else []
    device = _one_die(base, found, assumed)
    device = _with_memory(device, found, assumed)
    device = _at_power(device, found, assumed)
    if device is base and not assumed:
        return base
    if device is base:
        return msgspec.structs.replace(base, assumed=assumed)
    return msgspec.structs.replace(device, name=name, variant_of=base.name, assumed=assumed)


def _one_die(device: Device, found: Suffixes, assumed: list[str]) -> Device:
    whole = device.chip.logical_devices
    if not found.dies or found.dies >= whole:
        return device
    share = found.dies / whole
    assumed.append(f"{found.dies} of the {whole} devices of one {device.name}: that share of it")
    memory, chip = device.memory, device.chip
    return msgspec.structs.replace(
        scaled(device, share),
        memory=msgspec.structs.replace(
            memory,
            capacity_bytes=int(memory.capacity_bytes * share),
            bandwidth_bytes_per_second=memory.bandwidth_bytes_per_second * share,
            reported_bytes=None,
        ),
        chip=msgspec.structs.replace(chip, logical_devices=found.dies),
    )


def _with_memory(device: Device, found: Suffixes, assumed: list[str]) -> Device:
    memory, stated = device.memory, (found.gigabytes or 0.0) * 2**30
    other_kind = found.kind and found.kind.lower() != memory.kind.lower()
    same = not stated or abs(stated / memory.capacity_bytes - 1.0) <= SAME_SIZE
    if same and not other_kind:
        return device
    bandwidth = memory.bandwidth_bytes_per_second
    stack = STACK_BYTES_PER_SECOND.get(found.kind.lower())
    capacity = memory.capacity_bytes if same else int(stated)
    if other_kind and stack:
        bandwidth = stack * capacity / STACK_BYTES
        how = f"{found.kind}, 408 GB/s for each 16 GB as of the A100-80GB"
    else:
        how = f"the bandwidth of the {device.name}"
    assumed.append(f"{capacity / 2**30:.0f} GB of memory as named; {how}")
    changed = msgspec.structs.replace(
        memory,
        kind=found.kind or memory.kind,
        capacity_bytes=capacity,
        reported_bytes=memory.reported_bytes if same else None,
        bandwidth_bytes_per_second=bandwidth,
    )
    return msgspec.structs.replace(device, memory=changed)


def _at_power(device: Device, found: Suffixes, assumed: list[str]) -> Device:
    printed = device.power.watts if device.power else 0.0
    for mode in device.modes:
        if mode.watts == found.watts:
            return _in_mode(device, mode)
    if not found.watts or found.watts == printed:
        return device
    if device.modes:
        modes = ", ".join(f"{mode.watts:.0f}" for mode in device.modes)
        assumed.append(f"{device.name} has no power mode of {found.watts:.0f} W (but {modes})")
    if found.watts > printed:
        known = f"{printed:.0f} W are printed" if printed else "no power is on record"
        assumed.append(f"{found.watts:.0f} W as named, where {known}: rates as printed")
        return device
    assumed.append(
        f"{found.watts:.0f} of {printed:.0f} W: rates lower by the root of that, bandwidth not"
    )
    return scaled(device, math.sqrt(found.watts / printed))


def _in_mode(device: Device, mode: PowerMode) -> Device:
    """A device with the units and the clocks that one of its power modes leaves on."""
    chip = device.chip
    assert chip.num_units is not None
    assert chip.clock_hz is not None
    share = mode.num_units * mode.clock_hz / (chip.num_units * chip.clock_hz)
    changed = scaled(device, share)
    return msgspec.structs.replace(
        changed,
        chip=msgspec.structs.replace(chip, num_units=mode.num_units, clock_hz=mode.clock_hz),
        power=Power(source=mode.source, watts=mode.watts),
        memory=msgspec.structs.replace(
            device.memory, bandwidth_bytes_per_second=mode.bandwidth_bytes_per_second
        ),
        modes=[],
    )


def scaled(device: Device, share: float) -> Device:
    """A device with this share of every rate."""
    rates = {name: rate * share for name, rate in device.peaks.items()}
    return msgspec.structs.replace(
        device,
        peak_flops_per_second=msgspec.structs.replace(device.peak_flops_per_second, **rates),
    )
