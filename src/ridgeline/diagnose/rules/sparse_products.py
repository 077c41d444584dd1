"""A sparse matrix that is multiplied as coordinates.

torch's products of coordinates (COO) run on one core of a CPU and look up a row for every element;
in backward the transpose is sorted before it is multiplied, on a GPU too. By compressed rows (CSR)
a product reads its matrix once, in order (Saad, Iterative Methods for Sparse Linear Systems, 2003,
section 3.4).
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("coordinate-matrix",)


def find(reading: Reading) -> list[Finding]:
    """Products of coordinates take time."""
    products = reading.profile.habit("coordinate_product")
    seconds = reading.of_mean(products.seconds)
    if seconds <= 0:
        return []
    return reading.finding(
        "coordinate-matrix",
        touched_seconds=seconds,
        saves_seconds=(0.5 * seconds, 0.92 * seconds),
        confidence=0.85,
        summary=f"Products of a sparse matrix kept as coordinates take {duration(seconds)}, "
        f"{percent(reading.share(seconds))} of the step.",
        evidence={
            "products_seconds": seconds,
            "products_per_step": products.calls,
        },
        where=[products.site],
        cure="Keep the matrix by compressed rows (`to_sparse_csr()`), and those of its transpose "
        "for backward; make both once, before the loop.",
        effort="code",
        technique="compressed-rows",
    )
