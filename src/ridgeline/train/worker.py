"""The process of one rank, `python -m ridgeline.train.worker FOLDER`, which torchrun starts.

The folder holds the recipe that is run (`recipe.toml`). What a user can mend (a full disk is of
that kind) ends the process with the error's exit code and its one line in `errors/`, where whoever
started the ranks finds it. Any other end that is not 0 has torchrun start all ranks again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ridgeline.errors import RidgelineError, in_words, no_room
from ridgeline.measure.parent_death import die_with_parent
from ridgeline.records.recipe import Recipe
from ridgeline.records.recipe_file import read_recipe
from ridgeline.records.store import write_atomically
from ridgeline.train.agent import AGENT
from ridgeline.train.folder import ERRORS, RECIPE, RESULT


def main() -> None:
    """Run one rank to its end."""
    agent = os.environ.get(AGENT)
    if agent is not None:  # started by `ridgeline train`; other launchers have rules of their own
        die_with_parent(int(agent))
    from ridgeline.train.survive.watchdog import RECORDER

    for name, value in RECORDER.items():
        os.environ.setdefault(name, value)
    folder = Path(sys.argv[1])
    try:
        _end(_train(folder))
    except RidgelineError as error:
        _fail(folder, error)
    except Exception as error:  # whichever library found the disk full
        if not no_room(error):
            raise
        cure = "make room, and the same command goes on from what was saved"
        _fail(folder, RidgelineError(f"{folder}: {in_words(error)}; {cure}"))


def _fail(folder: Path, error: RidgelineError) -> None:
    """End the run, not only this rank: to start again would not help."""
    # Logs that are read from afar have nothing but this.
    sys.stderr.write(f"ridgeline: {error}\n")
    write_atomically(error_file(folder), f"{error.exit_code}\n{error}\n".encode())
    _end(error.exit_code)


def _end(code: int) -> None:
    """Leave without Python's shutdown.

    While gloo's threads live it aborts now and then ("terminate called without an active
    exception"), and torchrun would take a finished rank for a dead one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train(folder: Path) -> int:
    """Train, and return the exit code."""
    from ridgeline.train.survive.events import EventLog

    rank = int(os.environ.get("RANK", "0"))
    log = EventLog(folder) if rank == 0 else None
    recipe = _on_these_ranks(read_recipe(folder / RECIPE))
    if log is not None:
        # Ranks that were told to go, and are wanted again, have left one.
        (folder / RESULT).unlink(missing_ok=True)
        log.write("started", note=f"{recipe.layout.num_devices} ranks")
    if rank >= recipe.layout.num_devices and recipe.survive.allow_shrink:
        from ridgeline.train.survive.vigil import stand_by

        stand_by()
        return 0
    from ridgeline.train.session import train_as_rank
    from ridgeline.train.survive.guard import RollBack
    from ridgeline.train.survive.watchdog import EXIT_CODE

    try:
        return train_as_rank(recipe, folder)
    except RollBack as bad:
        if log is not None:
            note = f"{bad}; its batch is skipped"
            log.write("rolled_back", bad.batch.step, note)
            sys.stderr.write(f"ridgeline: {note}\n")
        return EXIT_CODE


def _on_these_ranks(recipe: Recipe) -> Recipe:
    """The recipe on as many ranks as were started, where it allows fewer than it names."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if not recipe.survive.allow_shrink or world == recipe.layout.num_devices:
        return recipe
    from ridgeline.train.check import fitted

    layout = fitted(recipe.layout, world)
    os.environ["WORLD_SIZE"] = str(layout.num_devices)
    return msgspec.structs.replace(recipe, layout=layout)


def error_file(folder: Path) -> Path:
    """Where this rank leaves its one line."""
    return folder / ERRORS / f"rank{os.environ.get('RANK', '0')}.txt"


if __name__ == "__main__":
    main()
