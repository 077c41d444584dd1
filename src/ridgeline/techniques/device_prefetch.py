"""Copy the next batch to the GPU, on a stream of its own, while this one is computed.

A batch is taken from the loader one step ahead. Only those of its tensors are moved that the
script was seen to move by itself (its own `.to(device)` then finds the work done), so a label
that the script keeps on the host stays there. The batches and their order are the same.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

CARD = Card(
    name="device-prefetch",
    title="Next batch copied while this one is computed",
    cures=("pageable-copies", "input-starved"),
    costs="One more batch of device memory; without workers, items that draw random numbers "
    "draw them a step earlier.",
    source="PyTorch documentation, CUDA semantics, CUDA streams",
    equivalence="statistical",
    stage=Stage.INPUT,
    moves_work=True,
)

Positions = dict[int, Any]
"""Position among a batch's tensors → the device that the script moves it to."""


def applies(context: Context) -> Applicability:
    """Batches of a DataLoader are copied to a GPU, and the copy is felt."""
    if context.device != "cuda":
        return Applicability(False, f"the model is on {context.device}: nothing is copied to it")
    if not context.profile.loaders:
        return Applicability(False, "no DataLoader was iterated")
    share = context.phase_share("copy")
    if share < 0.01:
        return Applicability(False, f"copies to the device take {share:.1%} of a step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """The copy hides behind the step."""
    return amdahl(context.phase_share("copy"), 1.2, 20.0)


def apply(points: Points, options: Options) -> Undo:
    """Wrap loaders' iterators once the script has been seen to move their batches."""
    import torch

    watch = MoveWatch()
    watch.install()

    def wrap(loader: Any, iterator: Any) -> Any:
        if not torch.cuda.is_available():
            return iterator
        return Prefetcher(iterator, watch.positions(loader), watch, CudaMover(), changed)

    def changed(count: int) -> None:
        points.changed(CARD.name, f"{count} tensor(s) of each batch copied a step ahead")

    points.wrap_loader.append(wrap)

    def undo() -> None:
        points.wrap_loader.remove(wrap)
        watch.remove()

    return undo


class MoveWatch:
    """Learns which tensors of a batch the script moves, and where to."""

    def __init__(self) -> None:
        self._positions: dict[int, Positions] = {}
        self._watched: dict[int, tuple[weakref.ref[Any], int, Positions]] = {}
        self._take_off: Undo = in_reverse([])

    def positions(self, loader: Any) -> Positions:
        """What was learned of a loader's batches, and will be."""
        return self._positions.setdefault(id(loader), {})

    def install(self) -> None:
        """Watch `Tensor.to` and `Tensor.cuda`."""
        names = ("torch:Tensor.to", "torch:Tensor.cuda")
        self._take_off = in_reverse([patch(name, self._watching) for name in names])

    def remove(self) -> None:
        """Put the originals back."""
        self._take_off()

    def look_at(self, tensors: list[Any], positions: Positions) -> None:
        """These are the tensors of the batch that the script is about to get."""
        self._watched = {
            id(tensor): (weakref.ref(tensor), position, positions)
            for position, tensor in enumerate(tensors)
        }

    def _watching(self, original: Any) -> Any:
        @functools.wraps(original)
        def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            if self._watched:
                known = self._watched.get(id(tensor))
                same = known is not None and known[0]() is tensor
                if known is not None and same and result.device != tensor.device:
                    known[2][known[1]] = result.device
            return result

        return move


class Prefetcher:
    """An iterator that is one batch ahead of the script, and moves what the script would."""

    def __init__(
        self,
        iterator: Any,
        positions: Positions,
        watch: MoveWatch,
        mover: Mover,
        changed: Callable[[int], None],
    ) -> None:
        self._iterator = iterator
        self._positions = positions
        self._watch = watch
        self._mover = mover
        self._changed = changed
        self._ahead: list[Any] = []
        """The next batch, or nothing."""
        self._ended = False

    def __iter__(self) -> Prefetcher:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        batch = self._ahead.pop() if self._ahead else self._fetch()
        self._mover.wait(_tensors(batch))
        if not self._positions:
            self._watch.look_at(_tensors(batch), self._positions)
            return batch
        try:
            self._ahead.append(self._fetch())
        except StopIteration:
            self._ended = True
        return batch

    def _fetch(self) -> Any:
        from torch.utils._pytree import tree_flatten, tree_unflatten

        batch = next(self._iterator)
        if not self._positions:
            return batch
        leaves, structure = tree_flatten(batch)
        places = _tensor_places(leaves)
        for position, device in self._positions.items():
            if position < len(places):
                leaves[places[position]] = self._mover.move(leaves[places[position]], device)
        self._changed(len(self._positions))
        return tree_unflatten(leaves, structure)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)

    def __len__(self) -> int:
        return len(self._iterator)


class Mover(Protocol):
    """Moves tensors to a device ahead of their use."""

    def move(self, tensor: Any, device: Any) -> Any:
        """Begin to move it; returns the tensor there."""

    def wait(self, tensors: list[Any]) -> None:
        """What computes from now on may use these."""


class CudaMover:
    """Copies on a stream of its own."""

    def __init__(self) -> None:
        self._stream: Any = None

    def move(self, tensor: Any, device: Any) -> Any:
        """Begin to copy a batch."""
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            return tensor.to(device, non_blocking=True)

    def wait(self, tensors: list[Any]) -> None:
        """Let the current stream wait for what was begun; the memory is its from now on."""
        import torch

        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_stream(self._stream)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(current)


def _tensors(batch: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(batch)
    return [leaves[place] for place in _tensor_places(leaves)]


def _tensor_places(leaves: list[Any]) -> list[int]:
    import torch

    return [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]


def edits(context: Context, options: Options) -> list[Edit]:
    """No edit is offered: the loop itself would have to be written another way round."""
    return []
