"""Gradients in fewer bits: cast to 16, or quantised to 8 or 1 with a scale for each group.

    fp16, bf16   cast and summed in 16 bits. fp16 is torch's `fp16_compress_hook`: divided by the
                 ranks before the sum; beyond 65504 infinite and below 6e-8 zero, so that it belongs
                 to gradients of a scaled loss. torch's `bf16_compress_hook` is refused without
                 NCCL, though gloo reduces bf16 itself. What rounding loses is not remembered.
    int8         256 elements with one fp32 scale, rounded to the nearest of 255 steps between minus
                 and plus the largest magnitude (block-wise absmax as in Dettmers et al., arXiv
                 2110.02861, section 2.1, with linear steps)
    sign         1024 elements with one fp32 scale, their mean magnitude: EF-signSGD, Karimireddy
                 et al., "Error feedback fixes SignSGD", arXiv 1901.09847, algorithm 1, with scale
                 |p|₁/d for each block; there the learning rate is inside what is compressed, here
                 it is applied after, which is the same while it is constant. Zero counts as
                 positive.

Sums of int8 overflow and sums of signs are no signs, so these cannot simply be all-reduced. Each
rank owns a part of the elements instead, and the mean is taken in two steps:

    all-to-all   every rank's quantised share of a part, to its owner
    mean         decoded, in fp32, in the order of ranks; quantised again
    all-gather   the owner's result

that is 2(n-1)/n of the message, as in a ring all-reduce, where gathering everything would send
(n-1) messages. Both quantisations leave an error that is remembered and added next time, on the
sender's and on the owner's side: Tang et al., "DoubleSqueeze", arXiv 1905.05957, algorithm 1; the
compressed all-reduce of 1-bit Adam, arXiv 2102.02888, section 4.2.

Shapes: G groups of elements that share a scale, E elements each, C bytes of codes each. Groups
never span parameters and their owner follows from the parameter alone, so that results do not
depend on how parameters are bucketed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ridgeline.train.compression.bucket import Bucket, ErrorMemory, GradientScheme
from ridgeline.train.compression.counted import CountedGroup, as_bytes

_SCALE_BYTES = 4
_LARGEST = 127.0
"""The largest code of int8."""
_BITS = 8


class Cast(GradientScheme):
    """Gradients summed in 16 bits."""

    def __init__(self, dtype: torch.dtype, counted: CountedGroup) -> None:
        self._dtype = dtype
        self._counted = counted

    def reduce(self, bucket: Bucket) -> None:
        """All-reduce a copy of the narrow type."""
        sent = bucket.buffer.to(self._dtype).div_(self._counted.size)
        self._counted.all_reduce(sent)
        bucket.buffer.copy_(sent)


class Codec(Protocol):
    """How a group of elements becomes bytes."""

    group: int
    """Elements that share a scale (E)."""

    def encode(self, elements: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Turn elements [G, E], `count` [G] of them no padding, into codes [G, C], scales [G]."""

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Turn codes as bytes [G, C] and scales [G] into elements [G, E]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Where the groups of one bucket go."""

    groups: tuple[int, ...]
    """Groups of each parameter."""
    order: Tensor
    """[G] groups sorted by owner."""
    count: Tensor
    """[G] elements in each, in that order."""
    padding: Tensor
    """[G, E] in that order, true where there is no element."""
    rows_to: tuple[int, ...]
    """Groups that each rank owns."""
    owned: tuple[int, ...]
    """Groups of each parameter that this rank owns."""


class TwoStepMean(GradientScheme):
    """The mean of what a codec makes of gradients, taken in two steps."""

    def __init__(self, codec: Codec, counted: CountedGroup, sizes: Mapping[str, int]) -> None:
        self._codec = codec
        self._counted = counted
        self._first_group: dict[str, int] = {}
        first = 0
        for name, size in sizes.items():
            self._first_group[name] = first
            first += -(-size // codec.group)
        self._sender_error = ErrorMemory("error memory")
        self._owner_error = ErrorMemory("error memory of the owned part")
        self._plans: dict[tuple[str, ...], _Plan] = {}

    def reduce(self, bucket: Bucket) -> None:
        """Exchange shares, take their mean, share the result."""
        plan = self._plan(bucket)
        message = self._encode_gradients(bucket, plan)
        received = self._counted.all_to_all(message, plan.rows_to)
        share = self._encode_mean(bucket, plan, received)
        longest = max(plan.rows_to)
        padded = torch.nn.functional.pad(share, (0, 0, 0, longest - len(share)))
        everyone = self._counted.all_gather(padded)
        rows = torch.cat([rows[:count] for rows, count in zip(everyone, plan.rows_to, strict=True)])
        result = torch.empty(
            (len(rows), self._codec.group), dtype=torch.float32, device=rows.device
        )
        result[plan.order] = self._decode(rows)
        for gradient, part in zip(
            bucket.gradients, result.view(-1).split(self._padded(plan.groups)), strict=True
        ):
            gradient.copy_(part[: gradient.numel()].view_as(gradient))

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The errors left on the sender's and on the owner's side."""
        return {
            "error": self._sender_error.state_dict(),
            "owner_error": self._owner_error.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from there."""
        self._sender_error.load_state_dict(state["error"])
        self._owner_error.load_state_dict(state["owner_error"])

    def _encode_gradients(self, bucket: Bucket, plan: _Plan) -> Tensor:
        sizes = self._padded(plan.groups)
        error = self._sender_error.of(bucket.names, sizes, bucket.buffer.device)
        for part, gradient in zip(error.split(sizes), bucket.gradients, strict=True):
            part[: gradient.numel()].add_(gradient.reshape(-1))
        groups = error.view(-1, self._codec.group)
        due = groups[plan.order]
        message = self._encode(due, plan.count)
        groups[plan.order] = due.sub_(self._decode(message)).masked_fill_(plan.padding, 0.0)
        return message

    def _encode_mean(self, bucket: Bucket, plan: _Plan, received: Tensor) -> Tensor:
        """What this rank sends of its part; `received` is [rank, rows, bytes]."""
        start = sum(plan.rows_to[: self._counted.rank])
        mine = slice(start, start + plan.rows_to[self._counted.rank])
        mean = self._decode(received[0])
        for rows in received[1:]:
            mean += self._decode(rows)
        mean /= self._counted.size
        error = self._owner_error.of(
            bucket.names, self._padded(plan.owned), bucket.buffer.device
        ).view(-1, self._codec.group)
        mean += error
        # Decoded, padding is no longer zero, and must not reach the scale.
        mean.masked_fill_(plan.padding[mine], 0.0)
        share = self._encode(mean, plan.count[mine])
        error.copy_(mean.sub_(self._decode(share)).masked_fill_(plan.padding[mine], 0.0))
        return share

    def _encode(self, elements: Tensor, count: Tensor) -> Tensor:
        codes, scales = self._codec.encode(elements, count)
        return torch.cat([as_bytes(codes), as_bytes(scales.view(-1, 1))], dim=1)

    def _decode(self, rows: Tensor) -> Tensor:
        codes = rows[:, :-_SCALE_BYTES]
        scales = rows[:, -_SCALE_BYTES:].contiguous().view(torch.float32).view(-1)
        return self._codec.decode(codes, scales)

    def _padded(self, groups: tuple[int, ...]) -> list[int]:
        return [count * self._codec.group for count in groups]

    def _plan(self, bucket: Bucket) -> _Plan:
        if bucket.names in self._plans:
            return self._plans[bucket.names]
        ranks, width = self._counted.size, self._codec.group
        owners, counts, groups, owned = [], [], [], []
        for name, gradient in zip(bucket.names, bucket.gradients, strict=True):
            number = -(-gradient.numel() // width)
            owner = (torch.arange(number) + self._first_group[name]) % ranks
            count = torch.full((number,), width)
            count[-1] = gradient.numel() - (number - 1) * width
            owners.append(owner)
            counts.append(count)
            groups.append(number)
            owned.append(int((owner == self._counted.rank).sum()))
        owner_of_all, count_of_all = torch.cat(owners), torch.cat(counts)
        order = torch.argsort(owner_of_all, stable=True)
        count_of_all = count_of_all[order]
        padding = torch.arange(width) >= count_of_all[:, None]
        device = bucket.buffer.device
        plan = _Plan(
            groups=tuple(groups),
            order=order.to(device),
            count=count_of_all.to(device, torch.float32),
            padding=padding.to(device),
            rows_to=tuple(torch.bincount(owner_of_all, minlength=ranks).tolist()),
            owned=tuple(owned),
        )
        self._plans[bucket.names] = plan
        return plan


class Int8:
    """A `Codec` of one byte for each element."""

    group = 256

    def encode(self, elements: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Turn the largest magnitude of each group into the largest code."""
        del count
        scales = elements.abs().amax(dim=1) / _LARGEST
        steps = elements / torch.where(scales > 0, scales, 1.0)[:, None]
        return steps.round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scales

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Multiply codes by their scale."""
        return codes.view(torch.int8).to(torch.float32).mul_(scales[:, None])


class Sign:
    """A `Codec` of one bit for each element."""

    group = 1024

    def encode(self, elements: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the signs, eight in a byte, and their mean magnitude."""
        scales = elements.abs().sum(dim=1) / count
        bits = (elements >= 0).unflatten(1, (-1, _BITS)).to(torch.uint8)
        return (bits << _places(bits.device)).sum(dim=2, dtype=torch.uint8), scales

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Give each element plus or minus the scale."""
        bits = (codes[:, :, None] >> _places(codes.device)) & 1
        signs = bits.flatten(1).to(torch.float32).mul_(2.0).sub_(1.0)
        return signs.mul_(scales[:, None])


def _places(device: torch.device) -> Tensor:
    return torch.arange(_BITS, dtype=torch.uint8, device=device)
