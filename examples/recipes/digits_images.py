"""Write scikit-learn's 1,797 digits as the arrays that `ridgeline train` maps into memory.

    python examples/recipes/digits_images.py digits
    ridgeline train examples/recipes/digits-resnet.toml --set images.path=digits

The images are in the package (Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI
Machine Learning Repository, 1998): 8 x 8 pixels of 0 to 16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    """Write `images.npy`, uint8 [1797, 8, 8], and `labels.npy`."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    np.save(folder / "images.npy", (digits.images * 255 / 16).round().astype(np.uint8))
    np.save(folder / "labels.npy", digits.target.astype(np.int64))


if __name__ == "__main__":
    main()
