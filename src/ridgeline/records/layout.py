"""How one training run is laid out over devices: the knobs that a planner turns.

The names are those of the field (Megatron-LM, torchtitan, DeepSpeed): data, fully sharded, tensor,
pipeline, context and expert parallelism. `dp` counts every replica of the data stream, sharded or
not, so that `num_devices = dp · tp · pp · cp`; experts are spread over `ep` of the dp · cp ranks.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from ridgeline.errors import InputError

Recompute = Literal["none", "selective", "full"]
"""`selective` keeps what is dear to compute: attention and every second matmul in PyTorch's
programs (torchtitan), all but the attention core in Megatron's (Korthikanti et al. 2022); `full`
keeps only each layer's input."""
Precision = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
"""Arithmetic of the matmuls; weights are kept as the mixed-precision recipe has them."""
TRAINED: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "fp8")
"""What `ridgeline train` computes in."""
UNTRAINED: frozenset[str] = frozenset(get_args(Precision)) - frozenset(TRAINED)
"""What only other programs compute in."""
Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble"]
Offload = Literal["none", "optimizer", "optimizer+parameters", "optimizer-on-disk", "all-on-disk"]
"""What is kept away from the devices: in their host's memory, or on disk: the optimizer's state,
read and written portion by portion while the weights are updated, or with it parameters and
gradients, layer by layer."""

COUNTS = ("dp", "fsdp", "tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch", "global_batch")
"""Fields that count something, which is there at least once."""


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layout, checked on construction. Fields default to one device, nothing sharded."""

    dp: int = 1
    """Data-parallel ranks, sharded ones included."""
    fsdp: int = 1
    """Ranks over which `zero` shards; a divisor of dp · cp. Below dp it is hybrid sharding."""
    zero: Literal[0, 1, 2, 3] = 0
    """What is sharded over the `fsdp` ranks: 1 optimizer, 2 and gradients, 3 and parameters."""
    tp: int = 1
    sp: bool = False
    """With sequence parallelism, the activations between tensor-parallel regions are sharded
    too."""
    pp: int = 1
    vpp: int = 1
    """Model chunks on each pipeline rank (interleaving)."""
    schedule: Schedule = "1f1b"
    cp: int = 1
    ep: int = 1
    etp: int = 1
    """Tensor parallelism inside an expert."""
    micro_batch: int = 1
    """Sequences in one micro-batch of one data-parallel rank."""
    global_batch: int = 1
    """Sequences in one optimizer step, over all ranks."""
    recompute: Recompute = "none"
    precision: Precision = "bf16"
    offload: Offload = "none"
    compiled: bool = True
    """Element-wise chains are fused (torch.compile or hand-written fused kernels)."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"layout: {name} is {getattr(self, name)}; it must be 1 or more")
        if (self.dp * self.cp) % self.fsdp:
            raise InputError(
                f"layout: fsdp {self.fsdp} does not divide dp x cp = {self.dp * self.cp}"
            )
        if self.global_batch % (self.dp * self.micro_batch):
            raise InputError(
                f"layout: global batch {self.global_batch} is not a multiple of dp x micro-batch"
                f" = {self.dp} x {self.micro_batch}; change one of the three"
            )

    @property
    def num_devices(self) -> int:
        """Devices that the layout fills.

        >>> Layout(dp=4, tp=2, pp=2, global_batch=8).num_devices
        16
        """
        return self.dp * self.tp * self.pp * self.cp

    @property
    def on_host(self) -> bool:
        """Whether anything of the model waits in the host's memory, and is updated there.

        >>> Layout(offload="optimizer").on_host, Layout(offload="optimizer-on-disk").on_host
        (True, False)
        """
        return self.offload in ("optimizer", "optimizer+parameters")

    @property
    def on_disk(self) -> bool:
        """Whether anything of the model lies on disk.

        >>> Layout(offload="all-on-disk").on_disk, Layout(offload="optimizer").on_disk
        (True, False)
        """
        return self.offload.endswith("-on-disk")

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of one step that pass through each data-parallel rank."""
        return self.global_batch // (self.dp * self.micro_batch)
