"""Programs other than eager PyTorch that run a module: converted, loaded, called.

One file per runtime, of one shape, found by being there; a new runtime is a new file. `export/`
writes, checks and measures what they make; techniques put them under a running script.

A runtime module defines

    CARD                                        its name, file, precisions, how it is installed
    missing() -> str | None                     why it cannot run here, in one line
    write(captured, folder, calls) -> notes     the file, from an exported program
    load(artifact, *, threads) -> callable      called as the module is, answers as it does

and `capture/converting.py` makes artifacts with it:

    made = convert(runtime("onnx"), model, (images,), {}, folder, dynamic=("batch",))
    run = runtime("onnx").load(made, threads=2)
    logits = run(images)

`Artifact.read(folder)` finds again, in another process, what `convert` left in a folder. What
several runtimes need (the capture of a module, its inputs and outputs as structure, whose fault a
failure is) lies in `capture/`.

What may not enter: judging and timing (`export/`, `tune/`), and an import of a runtime, or of
torch, outside of the function that needs it. Start reading at `onnx_runtime.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.store import write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from ridgeline.runtimes.capture.program import Captured

Precision = Literal["fp32", "bf16", "fp16", "int8"]
Free = Literal["batch", "size"]
"""A dimension that may differ from call to call: the batch; height and width of images."""

ARTIFACT_NAME = "artifact.json"


class ModelCall(NamedTuple):
    """The arguments of one call of a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCard:
    """What a reader wants to know of a runtime before trying it."""

    name: str
    """The name that `--to` takes."""
    title: str
    file: str
    """What `write` leaves and `load` loads, in the folder of the artifact."""
    pip: str
    """The command that installs it; empty where it comes with torch or cannot be installed so."""
    precisions: tuple[Precision, ...]
    """What it computes in on this kind of machine; fp32 first."""
    needs: tuple[str, ...]
    """Modules that must be importable."""
    source: str
    """Where it is documented, as an address."""
    in_graph: tuple[Precision, ...] = ()
    """Precisions that are written into the exported program as casts; what the others mean, the
    runtime says itself."""
    any_dtype: bool = False
    """It runs torch's own operators, so modules may take and return complex numbers and the like.
    """
    free_attributes: bool = False
    """Groups of a convolution may follow from a free size: it runs them as eager does."""
    fixes_sizes: str = ""
    """Why no dimension can stay free, as the begin of a sentence; empty: they can."""


class Artifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A module as written for one runtime: its files, and how tensors go in and come out.

    It stands beside the files as `artifact.json`, so that another process can load it.
    """

    folder: Path
    runtime: str
    precision: Precision
    file: str
    """What the runtime loads, relative to `folder`."""
    files: list[str]
    """All that was written, without `artifact.json`."""
    free: list[Free]
    """Dimensions that may differ from the example's."""
    inputs: Any
    """Structure of `(args, kwargs)`, as `capture/structure.py` writes it."""
    outputs: Any
    """Structure of what the module returns."""
    shapes: list[list[int]]
    """Shape of each tensor that goes in, of the example."""
    dtypes: list[str]
    """The dtypes of those tensors, e.g. `float32`."""
    notes: list[str] = []
    """What a reader must know: layers left in float, too few calibration batches."""

    @property
    def path(self) -> Path:
        """The file that the runtime loads."""
        return self.folder / self.file

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum((self.folder / name).stat().st_size for name in self.files)

    def write(self) -> None:
        """Leave the description beside the files."""
        plain = {name: getattr(self, name) for name in self.__struct_fields__ if name != "folder"}
        write_atomically(self.folder / ARTIFACT_NAME, msgspec.json.encode(plain))

    @classmethod
    def read(cls, folder: Path) -> Artifact:
        """What `convert` left in a folder.

        Raises:
            InputError: No artifact is there.
        """
        try:
            plain = msgspec.json.decode((folder / ARTIFACT_NAME).read_bytes())
            return msgspec.convert(
                {**plain, "folder": folder}, cls, dec_hook=lambda _, given: given
            )
        except (OSError, msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
            raise InputError(f"{folder}: holds no exported module ({error})") from None


class Runtime(Protocol):
    """The shape of a file of this room: what differs from runtime to runtime."""

    CARD: RuntimeCard

    def missing(self) -> str | None:
        """Why it cannot run here, in one line with the cure; None: it can."""

    def write(self, captured: Captured, folder: Path, calls: Sequence[list[Tensor]]) -> list[str]:
        """Leave `CARD.file` in `folder`; returns what a reader must know.

        Args:
            captured: The exported program, with the precision that is wanted.
            folder: Exists.
            calls: The tensors of each calibration call; empty unless the precision is int8.
        """

    def load(self, artifact: Artifact, *, threads: int) -> Callable[..., Any]:
        """The program, to be called as the module is; it answers in the module's own structure.

        A call whose inputs have another structure, or another size in a dimension that is not
        free, raises InputError and computes nothing.
        """


@cache
def all_runtimes() -> dict[str, Runtime]:
    """Every runtime by name, found by file."""
    found: dict[str, Runtime] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.ispkg:
            continue
        module: Any = importlib.import_module(f"{__name__}.{info.name}")
        if module.CARD.name in found:
            raise AssertionError(f"{info.name}.py: the name {module.CARD.name} is taken")
        found[module.CARD.name] = module
    return found


def runtime(name: str) -> Runtime:
    """The runtime of that name; an unknown name lists the known ones."""
    known = all_runtimes()
    if name not in known:
        raise InputError(f"no runtime {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def not_installed(card: RuntimeCard) -> str | None:
    """Which modules a runtime lacks, and how they are installed; None: it has all."""
    absent = [name for name in card.needs if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    verb = "is" if len(absent) == 1 else "are"
    return f"{', '.join(absent)} {verb} not installed; run: {card.pip}"
