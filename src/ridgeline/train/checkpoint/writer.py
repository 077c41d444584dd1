"""Files of torch.distributed.checkpoint, summed while they are written and sealed at last.

Each rank writes and fsyncs its own files; their sums travel to the first rank with what torch
gathers there anyway. It writes the index and the manifest and renames the folder, all inside the
last step of torch's save: if that or anything before it fails on one rank, it has failed on all.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from ridgeline.train.checkpoint.store import FileSum, new_digest


@dataclass(frozen=True, slots=True)
class _Written:
    """The files of one rank."""

    files: dict[str, FileSum]


class SealingWriter(FileSystemWriter):
    """A writer of one checkpoint into a folder.

    Args:
        path: The folder.
        begin: Makes it, on the first rank, before anyone writes.
        seal: Called there at last, with the sums of all ranks' files.
    """

    def __init__(
        self,
        path: Path,
        begin: Callable[[], object],
        seal: Callable[[dict[str, FileSum]], object],
    ) -> None:
        # The sums' stream fsyncs by itself; torch would not flush the index before it did.
        super().__init__(path, sync_files=False, per_thread_copy_ahead=0)
        self.fs: _SummedFiles = _SummedFiles()
        self._begin = begin
        self._seal = seal

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder first; what fails here fails on all ranks."""
        if is_coordinator:
            self._begin()
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> torch.futures.Future[list[WriteResult]]:
        """Write this rank's files and hand over their sums."""
        try:
            written = super().write_data(plan, planner).wait()
        except Exception as error:
            # A full disk reaches us as what torch's serialiser made of it.
            raise self.fs.failure or error from error
        future: torch.futures.Future[list[Any]] = torch.futures.Future()
        future.set_result([*written, _Written(dict(self.fs.sums))])
        return future

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        """Write the index, then seal the checkpoint with all ranks' sums."""
        files: dict[str, FileSum] = {}
        for of_rank in results:
            for one in of_rank:
                if isinstance(one, _Written):
                    files |= one.files
        bare = [[one for one in of if isinstance(one, WriteResult)] for of in results]
        super().finish(metadata, bare)
        self._seal(files | self.fs.sums)


class _SummedFiles(FileSystem):
    """A file system that knows the sums of what was written through it."""

    def __init__(self) -> None:
        self.sums: dict[str, FileSum] = {}
        self.failure: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file whose content is summed while it is written."""
        with super().create_stream(path, mode) as raw:
            if mode != "wb":
                yield raw
                return
            stream = _SummedStream(cast("IO[bytes]", raw))
            try:
                yield cast("io.IOBase", stream)
                stream.close()
            except OSError as error:
                self.failure = error
                raise
            finally:
                self.failure = self.failure or stream.failure
            self.sums[Path(path).name] = FileSum(
                bytes=stream.size, blake2b=stream.digest.hexdigest()
            )

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file, and its sum with it."""
        super().rename(path, new_path)
        self.sums[Path(new_path).name] = self.sums.pop(Path(path).name)


class _SummedStream:
    """A file that is only ever appended to."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.digest = new_digest()
        self.size = 0
        self.failure: OSError | None = None

    def write(self, block: Any) -> int:
        """Append a block, and sum it."""
        try:
            self._raw.write(block)
        except OSError as error:
            self.failure = error
            raise
        with memoryview(block) as view:
            self.digest.update(view)
            self.size += view.nbytes
            return view.nbytes

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Hand everything to the operating system."""
        try:
            self._raw.flush()
        except OSError as error:
            self.failure = error
            raise

    def close(self) -> None:
        """Write everything to the disk; a second call does nothing."""
        if not self._raw.closed:
            self.flush()
            os.fsync(self._raw.fileno())
            self._raw.close()
