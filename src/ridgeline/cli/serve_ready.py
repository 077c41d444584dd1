"""What `ridgeline serve` says once it is ready: a line on stdout, memory and kernels on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.serve.messages import MemoryLedger, Ready


def say_ready(called: list[str], address: str, told: list[Ready], *, json: bool) -> None:
    """The line on stdout, and each model's memory and kernels on stderr."""
    import msgspec

    from ridgeline.cli.show import say

    for name, ready in zip(called, told, strict=False):
        if len(called) > 1:
            say(f"{name}:", err=True)
        say(ledger_table(ready.ledger), err=True)
        for kernel in ready.kernels:
            say(f"kernel of {kernel.in_words()}", err=True)
        for one in ready.slower:
            if not one.startswith("layers "):  # the ledger's last line
                say(f"slower: {one}", err=True)
    if json:
        document: dict[str, Any] = {"address": address, "model": called[0], "engine": told[0]}
        if len(called) > 1:
            document["engines"] = dict(zip(called, told, strict=False))
        say(msgspec.json.encode(document).decode())
    elif len(called) > 1:
        say(f"ready: {', '.join(called)} at {address}/v1")
    else:
        say(ready_line(address, called[0], told[0].ledger))


def ready_line(address: str, name: str, ledger: MemoryLedger) -> str:
    """Where a model is served, and how much fits at once."""
    return (
        f"ready: {name} at {address}/v1 · {ledger.num_blocks} blocks of {ledger.block_size}"
        f" = {ledger.tokens} tokens · {ledger.largest_concurrency:.1f} requests of"
        f" {ledger.max_length} tokens at once"
    )


def ledger_table(ledger: MemoryLedger) -> str:
    """The memory ledger in MiB (2**20 bytes)."""
    rows = [(row.what, row.bytes, row.note) for row in ledger.rows]
    rows += [("total", ledger.total_bytes, ""), ("limit", ledger.limit_bytes, "")]
    width = max(len(what) for what, _, _ in rows)
    where = "memory" if ledger.ranks == 1 else f"memory of each of {ledger.ranks} ranks"
    lines = [
        f"  {what:<{width}} {size / 2**20:>10.1f} MiB  {note}".rstrip() for what, size, note in rows
    ]
    return "\n".join([where, *lines, f"layers computed {ledger.layers}"])
