"""Keys and values from one process to another."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ridgeline.serve.cache import SequenceKv
from ridgeline.serve.cluster import kv_transfer
from ridgeline.serve.cluster.kv_transfer import KvTransferFailed, KvTransfers, fetch, pack, unpack

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


def some_kv(dtype: torch.dtype, tokens: int = 7, *, fixed: bool = False) -> SequenceKv:
    scaled = dtype in (torch.int8, torch.float8_e4m3fn)
    shapes = [(2, tokens - 1, 8), (3, tokens - 1, 4)]
    drawn = [torch.randn(shape).mul(9).to(dtype) for shape in shapes for _ in "kv"]
    axes = 1 if fixed else 2
    scales = [torch.rand(shape[:axes]) for shape in shapes for _ in "kv"] if scaled else []
    return SequenceKv(
        tokens=tuple(range(tokens)),
        keys=tuple(drawn[::2]),
        values=tuple(drawn[1::2]),
        key_scales=tuple(scales[::2]),
        value_scales=tuple(scales[1::2]),
    )


def same(one: SequenceKv, other: SequenceKv) -> bool:
    def flat(kv: SequenceKv) -> list[torch.Tensor]:
        return [*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales]

    return one.tokens == other.tokens and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.float(), b.float())
        for a, b in zip(flat(one), flat(other), strict=True)
    )


@pytest.fixture
def transfers() -> Iterator[KvTransfers]:
    transfers = KvTransfers()
    yield transfers
    transfers.close()


@pytest.mark.parametrize("over", ["memory", "tcp"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_arrives_is_what_was_sent(
    over: str, dtype: torch.dtype, transfers: KvTransfers
) -> None:
    kv = some_kv(dtype)
    address = transfers.offer("a", pack(kv), over)
    assert same(unpack(*fetch(address)), kv)


def test_scales_of_calibration_come_along(transfers: KvTransfers) -> None:
    kv = some_kv(torch.int8, fixed=True)
    assert same(unpack(*fetch(transfers.offer("a", pack(kv), "memory"))), kv)


@pytest.mark.parametrize("over", ["memory", "tcp"])
def test_a_prompt_of_one_token_has_no_keys_yet(over: str, transfers: KvTransfers) -> None:
    kv = some_kv(torch.float32, tokens=1)
    assert same(unpack(*fetch(transfers.offer("a", pack(kv), over))), kv)


@pytest.mark.parametrize("over", ["memory", "tcp"])
def test_what_was_released_or_has_expired_is_gone(
    over: str, transfers: KvTransfers, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = transfers.offer("a", pack(some_kv(torch.float32)), over)
    transfers.release("a")
    transfers.release("a")
    expired = transfers.offer("b", pack(some_kv(torch.float32)), over)
    monkeypatch.setattr(kv_transfer, "EXPIRY_SECONDS", -1.0)
    transfers.expire()
    for address in (released, expired):
        with pytest.raises(KvTransferFailed):
            fetch(address)


def test_no_shared_memory_is_left_behind(transfers: KvTransfers) -> None:
    address = transfers.offer("a", pack(some_kv(torch.float32)), "memory")
    file = Path("/dev/shm", address.partition(":")[2])
    assert file.exists()
    transfers.close()
    assert not file.exists()


@pytest.mark.parametrize("at", [0, 6, 20, -1, -40])
def test_one_flipped_bit_is_noticed(at: int, transfers: KvTransfers) -> None:
    address = transfers.offer("a", pack(some_kv(torch.bfloat16)), "memory")
    file = Path("/dev/shm", address.partition(":")[2])
    content = bytearray(file.read_bytes()[: pack(some_kv(torch.bfloat16)).num_bytes])
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(KvTransferFailed, match=r"damaged|no KV of this program|cut off"):
        fetch(address)


def test_a_wrong_key_gets_nothing(transfers: KvTransfers) -> None:
    address = transfers.offer("a", pack(some_kv(torch.float32)), "tcp")
    start, _, key = address.rpartition(":")
    with pytest.raises(KvTransferFailed, match="closed the connection"):
        fetch(f"{start}:{'0' * len(key)}")
    fetch(address)


def test_an_address_of_another_machine_is_one_line(transfers: KvTransfers) -> None:
    with pytest.raises(KvTransferFailed, match=r"socket on 192\.0\.2\.1"):
        transfers.offer("a", pack(some_kv(torch.float32)), "tcp", "192.0.2.1")


def test_nobody_at_the_other_end_is_one_line() -> None:
    with pytest.raises(KvTransferFailed, match="out of reach"):
        fetch(f"tcp:127.0.0.1:1:{'00' * 16}")
    with pytest.raises(KvTransferFailed, match="out of reach"):
        fetch("memory:psm_nobody")
    with pytest.raises(KvTransferFailed, match="unknown kind"):
        fetch("pigeon:1")


SENDER = """
import sys, torch
from ridgeline.serve.cache import SequenceKv
from ridgeline.serve.cluster.kv_transfer import KvTransfers, pack
keys = torch.arange(4096.0).view(1, 512, 8)
kv = SequenceKv(tokens=tuple(range(513)), keys=(keys,), values=(-keys,))
print(KvTransfers().offer("a", pack(kv), sys.argv[1]), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("over", ["memory", "tcp"])
def test_between_real_processes_and_after_a_kill_nothing_is_left(over: str) -> None:
    command = [sys.executable, "-c", SENDER, over]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sender:
        assert sender.stdout is not None
        address = sender.stdout.readline().strip()
        kv = unpack(*fetch(address))
        assert torch.equal(kv.keys[0], torch.arange(4096.0).view(1, 512, 8))
        assert torch.equal(kv.values[0], -kv.keys[0])
        sender.send_signal(signal.SIGKILL)
        sender.wait()
        sender.stdout.read()  # ends when the tracker of its shared memory has ended too
    with pytest.raises(KvTransferFailed, match="out of reach"):
        fetch(address)
