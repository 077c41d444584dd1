"""What a search has measured, a line each, so that an interrupted one goes on from there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ridgeline.records.appended import AppendedFile, read_journal
from ridgeline.records.compression import LayerLoss

FILE = "sensitivities.jsonl"


class SearchJournal:
    """Open until closed. A line that a crash cut short is left out and measured again."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        self.losses: dict[tuple[str, str], LayerLoss] = {}
        for loss in read_journal(path, msgspec.json.Decoder(LayerLoss).decode):
            self._keep(loss)
        self._file = AppendedFile(path)

    def add(self, loss: LayerLoss) -> None:
        """On the disk when this returns."""
        self._file.append(msgspec.json.encode(loss), sync=True)
        self._keep(loss)

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()

    def _keep(self, loss: LayerLoss) -> None:
        self.losses[loss.layer, loss.scheme] = loss
