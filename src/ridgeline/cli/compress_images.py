"""`ridgeline compress MODEL` of a model that takes images: fewer bits or channels, at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.errors import InputError, Interrupted, Regression

REPORT = "report.html"

if TYPE_CHECKING:
    from ridgeline.compress.images.material import ImageMaterial
    from ridgeline.records.image_compression import ImageLedger
    from ridgeline.records.scheme import Scheme


def run_on_images(
    material: ImageMaterial,
    schemes: Sequence[Scheme],
    *,
    max_loss: str | None,
    exports: Sequence[str],
    refused: Mapping[str, bool],
    json: bool,
) -> None:
    """Compress an image classifier, show the rows, and write the ledger beside what was saved.

    Args:
        material: Model, images, and where to.
        schemes: Prunings of channels, then at most one quantisation.
        max_loss: As given.
        exports: Formats.
        refused: Options that mean nothing here → whether they were given.
        json: Print one document.
    """
    from ridgeline.cli.show import progress, show_answer
    from ridgeline.compress.images.apply import compress_images
    from ridgeline.compress.images.limits import image_limit
    from ridgeline.models.quiet import quiet_libraries
    from ridgeline.report.views.compress_images import image_compression_document

    for option, given in refused.items():
        if given:
            cure = "use --mixed, with --max-loss" if option == "--target" else "leave it out"
            raise InputError(f"{option}: {material.model} takes images; {cure}")
    for name in exports:
        if name != "torch-export":
            raise InputError(f"--export {name}: image models are exported as torch-export")
    if not schemes:
        raise InputError("say what to do: --scheme NAME, such as w8a8-int8 or 50%-channels")
    bound = None if max_loss is None else image_limit("--max-loss", max_loss)
    with quiet_libraries(), progress() as on_progress:
        try:
            ledger = compress_images(material, schemes, max_loss=bound, on_progress=on_progress)
            ledger = _completed(ledger, material, exports)
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was saved") from None
    show_answer(ledger, image_compression_document(ledger), json=json)
    if ledger.refused:
        raise Regression(f"nothing was saved: {ledger.refused}")


def _completed(ledger: ImageLedger, material: ImageMaterial, exports: Sequence[str]) -> ImageLedger:
    """With report and exports; the ledger lies beside what was saved."""
    from msgspec.structs import replace

    from ridgeline.compress.apply import LEDGER
    from ridgeline.compress.images.material import divided, open_sources
    from ridgeline.compress.images.models import open_model
    from ridgeline.compress.images.recognised import PROGRAM
    from ridgeline.compress.images.saved import export_to
    from ridgeline.records.store import write_atomically, write_record
    from ridgeline.report.page import draw_page
    from ridgeline.report.views.compress_images import image_compression_document

    if ledger.saved is None:
        return ledger
    out = Path(ledger.saved)
    ledger = replace(ledger, report=str(out / REPORT))
    write_record(out / LEDGER, ledger)  # what is saved has its ledger, even if an export fails
    write_atomically(out / REPORT, draw_page(image_compression_document(ledger)).encode())
    if exports:
        if not (out / PROGRAM).is_file():
            model = open_model("--out", out)
            _, judged, _ = divided(material, open_sources(material), model)
            export_to(model.module, judged.head(3), out / PROGRAM)
        ledger = replace(ledger, exports={"torch-export": str(out / PROGRAM)})
        write_record(out / LEDGER, ledger)
    return ledger
