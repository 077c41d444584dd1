"""How long the slowest test files take: `seconds_by_file.csv`, which `conftest.py` orders by.

Two workers end together only where long files are begun first. To measure anew:

    python -m pytest -n 2 --dist loadfile --durations 0 | python tests/file_seconds.py

Only the order matters, so that any machine's seconds will do.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

TABLE = Path(__file__).with_name("seconds_by_file.csv")
LEAST_SECONDS = 2.0
_LINE = re.compile(r"\s*([\d.]+)s (?:call|setup|teardown)\s+(tests/\S+?\.py)::")


def measured(lines: Iterable[str]) -> dict[str, float]:
    """File → seconds of its tests, fixtures included, of pytest's table of durations."""
    seconds: Counter[str] = Counter()
    for line in lines:
        if found := _LINE.match(line):
            seconds[found[2]] += float(found[1])
    slow = (pair for pair in seconds.most_common() if pair[1] >= LEAST_SECONDS)
    return {file: round(value, 1) for file, value in slow}


def known() -> dict[str, float]:
    """What the table says."""
    with TABLE.open(newline="") as file:
        return {row["file"]: float(row["seconds"]) for row in csv.DictReader(file)}


def main() -> None:
    """Read pytest's output from standard input, write the table."""
    rows = measured(sys.stdin)
    if not rows:
        sys.exit("no durations in the input; run pytest with --durations 0")
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("file", "seconds"))
        writer.writerows(rows.items())


if __name__ == "__main__":
    main()
