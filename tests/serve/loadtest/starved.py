"""`python -m tests.serve.loadtest.starved URL MAX_SEND_LAG`: a load test beside a busy thread."""

from __future__ import annotations

import sys
import threading

from ridgeline.cli.main import run


def spin() -> None:
    while True:
        sum(range(1_000_000))  # one call of C: the interpreter is not handed over within it


if __name__ == "__main__":
    threading.Thread(target=spin, daemon=True).start()
    sys.exit(run(["loadtest", sys.argv[1], "--rate", "40", "--seconds", "0.8",
                  "--output-tokens", "1", "--max-send-lag", sys.argv[2], "--json"]))  # fmt: skip
