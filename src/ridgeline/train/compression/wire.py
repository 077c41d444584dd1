"""The communication hook of DDP that carries gradients, and the schemes that it may run.

    wire = attach(ddp_model, recipe, ranks)
    …a step…
    wire.take().sent_bytes

Collectives match by the order in which ranks start them. A hook that started its second collective
when the first is done would start it before or after the next bucket's, as it happens on each
rank: with gloo they then meet the wrong partner. So a bucket's exchange is whole before the next
begins (`_Lane`): beside the backward pass in a thread on the host, and in a stream of its own on a
CUDA device.

The mean may be taken on two levels, within each node first, so that little crosses between nodes:

    reduce-scatter   inside the node: each of its d ranks has 1/d of the node's sum
    all-reduce       of that part, among the ranks with the same part on the m nodes
    all-gather       inside the node

Each rank sends 2(m-1)/m · S/d between nodes where a ring over all would carry 2(n-1)/n · S through
every node's cards (Mikami et al., "Massively distributed SGD", arXiv 1811.05233). With 16-bit
compression the part between nodes travels in 16 bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe, RecipeCommunication
from ridgeline.train.compression.bucket import Bucket, GradientScheme
from ridgeline.train.compression.counted import CountedGroup, Traffic
from ridgeline.train.compression.powersgd import PowerSgd
from ridgeline.train.compression.quantised import Cast, Int8, Sign, TwoStepMean
from ridgeline.train.compression.sparse import RandomK, TopK
from ridgeline.train.part import FilledModel, Part, PartState
from ridgeline.train.ranks import Ranks

_DTYPES = {"none": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What may cross between nodes in a hierarchical all-reduce."""
SCHEMES: Mapping[
    str, Callable[[RecipeCommunication, CountedGroup, Mapping[str, int]], GradientScheme]
] = {
    "bf16": lambda _, group, __: Cast(torch.bfloat16, group),
    "fp16": lambda _, group, __: Cast(torch.float16, group),
    "int8": lambda _, group, sizes: TwoStepMean(Int8(), group, sizes),
    "powersgd": lambda settings, group, _: PowerSgd(settings.powersgd_rank, group),
    "randomk": lambda settings, group, _: RandomK(settings.kept_share, group),
    "sign": lambda _, group, sizes: TwoStepMean(Sign(), group, sizes),
    "topk": lambda settings, group, _: TopK(settings.kept_share, group),
}
"""What makes the scheme that `communication.compression` of a recipe names.

Its arguments: the table, the ranks that agree, the elements of each parameter.
"""
_Exchange = tuple[Callable[[], Tensor], "torch.futures.Future[Tensor]"]


class Wire(Part):
    """The communication hook of one model, and what went through it."""

    name = "wire"
    remembers_buckets = True

    def __init__(
        self,
        model: DistributedDataParallel,
        scheme: GradientScheme | None,
        counted: CountedGroup,
        start: int,
    ) -> None:
        """Begin with a model whose hook is not registered yet.

        Args:
            model: In whose backward passes gradients are exchanged.
            scheme: What travels; None: the gradients.
            counted: The ranks that agree.
            start: Exchanges (optimizer steps) of plain gradients before the scheme begins.
        """
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        self._scheme = scheme
        self._counted = counted
        self._start = start
        self._device = next(model.module.parameters()).device
        self._lane = _Lane(self._device) if scheme else None
        self._exchanges = 0

    @classmethod
    def make(cls, filled: FilledModel) -> Wire | None:
        """`[communication]` of the recipe, where DDP sums the gradients.

        Raises:
            InputError: The recipe asks for what only DDP can do.
        """
        if isinstance(filled.replica, DistributedDataParallel):
            return attach(filled.replica, filled.recipe, filled.ranks)
        check_without_hook(filled.recipe)
        return None

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Bytes that this rank sent in a step."""
        del phases_by_rank
        return {"bytes_sent": self.take().sent_bytes / steps}

    def hook(self, grad_bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Exchange a bucket whose gradients are complete, as DistributedDataParallel asks."""
        last = grad_bucket.is_last()
        plain = self._scheme is None or self._exchanges < self._start
        self._exchanges += last
        if plain:
            return self._all_reduce(grad_bucket.buffer())
        assert self._scheme is not None
        assert self._lane is not None
        scheme = self._scheme
        bucket = Bucket(
            position=grad_bucket.index(),
            names=tuple(self._names[parameter] for parameter in grad_bucket.parameters()),
            buffer=grad_bucket.buffer(),
            gradients=tuple(grad_bucket.gradients()),
            last=last,
        )

        def exchange() -> Tensor:
            scheme.reduce(bucket)
            return bucket.buffer

        return self._lane.submit(exchange)

    def take(self) -> Traffic:
        """What this rank sent since the last call, once the backward pass is over."""
        traffic = self._counted.take()
        if isinstance(self._scheme, Hierarchical):
            inside, across = self._scheme.take()
            traffic += inside + across
        return traffic

    def state_dict(self) -> PartState:
        """The number of exchanges, and what the scheme remembers on this rank."""
        memories = self._scheme.state_dict() if self._scheme else {}
        private = {
            f"{kind}/{name}": tensor
            for kind, tensors in memories.items()
            for name, tensor in tensors.items()
        }
        return PartState(private=private, own={"exchanges": self._exchanges})

    def load_state_dict(self, state: PartState, *, same_ranks: bool = True) -> None:
        """Go on from there; memories belong to as many ranks as there were."""
        self.take()
        self._exchanges = state.own["exchanges"]
        if self._scheme is None or not same_ranks or not state.private:
            return
        memories: dict[str, dict[str, Tensor]] = {kind: {} for kind in self._scheme.state_dict()}
        for key, tensor in state.private.items():
            kind, _, name = key.partition("/")
            memories.setdefault(kind, {})[name] = tensor.to(self._device)
        self._scheme.load_state_dict(memories)

    def _all_reduce(self, buffer: Tensor) -> torch.futures.Future[Tensor]:
        self._counted.note_all_reduce(buffer.nbytes)
        buffer.div_(self._counted.size)
        work = dist.all_reduce(buffer, group=self._counted.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])


def attach(model: DistributedDataParallel, recipe: Recipe, ranks: Ranks) -> Wire:
    """Register what the recipe says as the model's communication hook.

    Every process must call it, at the same place.

    Raises:
        InputError: Parts of the recipe that do not go together.
    """
    settings = recipe.communication
    counted = CountedGroup(ranks.group("gradients"))
    if settings.hierarchical:
        scheme: GradientScheme | None = _hierarchical(settings, ranks, counted.group)
    else:
        scheme = make_scheme(model.module, recipe, counted)
    wire = Wire(model, scheme, counted, settings.compression_start)
    # torch wants a parameter of this name, and no annotation that is a string.
    model.register_comm_hook(wire, lambda wire, bucket: wire.hook(bucket))
    return wire


def check_without_hook(recipe: Recipe) -> None:
    """Refuse what a layout cannot do whose gradients do not pass through DDP.

    Raises:
        InputError: The recipe asks for what only its hooks can do.
    """
    settings, layout = recipe.communication, recipe.layout
    wanted = [f"compression {settings.compression}"] if settings.compression != "none" else []
    wanted += ["hierarchical"] if settings.hierarchical else []
    if wanted and layout.dp * layout.cp > 1:
        raise InputError(
            f"communication: {' and '.join(wanted)} needs whole gradients on every rank: set"
            " layout.zero to 0, tp, pp and ep to 1 and offload to none, or leave it out"
        )


def make_scheme(model: nn.Module, recipe: Recipe, counted: CountedGroup) -> GradientScheme | None:
    """Make the scheme that `compression` of a recipe names; None: gradients travel as they are."""
    settings = recipe.communication
    if settings.compression == "none":
        return None
    _check(recipe)
    sizes = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    return SCHEMES[settings.compression](settings, counted, sizes)


def _hierarchical(
    settings: RecipeCommunication, ranks: Ranks, group: dist.ProcessGroup
) -> Hierarchical:
    if settings.compression not in _DTYPES:
        raise InputError(
            f"communication: hierarchical goes with compression {', '.join(_DTYPES)}, not with"
            f" {settings.compression}; leave one of the two out"
        )
    inside, across = two_levels(ranks, group)
    return Hierarchical(_DTYPES[settings.compression], inside, across)


def _check(recipe: Recipe) -> None:
    settings = recipe.communication
    remembers = settings.compression not in _DTYPES
    if remembers and recipe.layout.precision == "fp16":
        raise InputError(
            f"communication.compression {settings.compression} remembers gradients from step to"
            " step, and with layout.precision fp16 the loss scale between them changes; use bf16"
        )
    if not 0.0 < settings.kept_share <= 1.0:
        raise InputError(
            f"communication.kept_share is {settings.kept_share}; it must lie between 0 and 1"
        )
    if settings.powersgd_rank < 1:
        raise InputError(
            f"communication.powersgd_rank is {settings.powersgd_rank}; it must be 1 or more"
        )


class _Lane:
    """Exchanges of one model, run one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._jobs: SimpleQueue[_Exchange] = SimpleQueue()
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
        else:
            # A daemon: a rank whose peer is gone must still be able to leave.
            threading.Thread(target=self._work, name="gradient exchange", daemon=True).start()

    def submit(self, exchange: Callable[[], Tensor]) -> torch.futures.Future[Tensor]:
        """Run an exchange after those submitted before; the future holds its result."""
        if self._stream is None:
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            self._jobs.put((exchange, future))
            return future
        future = torch.futures.Future(devices=[self._device])
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream), torch.no_grad():
            future.set_result(exchange())
        return future

    def _work(self) -> None:
        while True:
            exchange, future = self._jobs.get()
            try:
                with torch.no_grad():
                    result = exchange()
            except Exception as error:  # it belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)


class Hierarchical(GradientScheme):
    """The mean over nodes of the means within them."""

    def __init__(self, dtype: torch.dtype, inside: CountedGroup, across: CountedGroup) -> None:
        self._dtype = dtype
        self._inside = inside
        self._across = across

    def reduce(self, bucket: Bucket) -> None:
        """Reduce inside the node, then across nodes, then share inside the node."""
        length = bucket.buffer.numel()
        short = -length % self._inside.size
        whole = torch.nn.functional.pad(bucket.buffer, (0, short))
        whole /= self._inside.size * self._across.size
        part = self._inside.reduce_scatter(whole)
        sent = part.to(self._dtype)
        self._across.all_reduce(sent)
        part.copy_(sent)
        bucket.buffer.copy_(self._inside.all_gather(part).view(-1)[:length])

    def take(self) -> tuple[Traffic, Traffic]:
        """What this rank sent since the last call: inside the node, between nodes."""
        return self._inside.take(), self._across.take()


def two_levels(ranks: Ranks, group: dist.ProcessGroup) -> tuple[CountedGroup, CountedGroup]:
    """The groups of this rank inside its node and across nodes. Every process must call it."""
    members = dist.get_process_group_ranks(group)
    nodes: dict[int, list[int]] = {}
    for rank in members:
        nodes.setdefault(rank // ranks.local_world, []).append(rank)
    sizes = {len(node) for node in nodes.values()}
    if len(members) != ranks.world or len(sizes) != 1:
        raise InputError(
            "communication.hierarchical needs as many data-parallel ranks on every node, and no"
            f" other kind of parallelism; here nodes have {sorted(sizes)} of {ranks.world} ranks"
        )
    inside, _ = dist.new_subgroups_by_enumeration(list(nodes.values()))
    columns = [list(column) for column in zip(*nodes.values(), strict=True)]
    across, _ = dist.new_subgroups_by_enumeration(columns)
    return CountedGroup(inside), CountedGroup(across)
