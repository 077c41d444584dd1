"""Training from object stores against the same run from a local folder, over real HTTP.

    pip install "moto[server]" s3fs gcsfs gcp-storage-emulator
    python bench/object_store.py                 # exit 1 where anything differs

A server that speaks S3 (moto's) and one that speaks Google's storage API (gcp-storage-emulator)
run on this machine. A prepared folder of tokens and tar shards of images are put into a bucket of
each. For each store: a run of its own from the address; the same killed half-way and gone on with,
its cache removed in between; and what is said of a bucket that is not there and of keys that are
refused. Losses and weights must be those of the local folder to the bit. No speed is measured: a
server on the same machine says nothing of a store.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy as np
from PIL import Image
from safetensors import safe_open

LIBRARY = Path(__file__).resolve().parents[1] / "examples" / "models" / "library"
STEPS = 16
NET = {
    "model_type": "resnet",
    "layer_type": "basic",
    "depths": [1, 1],
    "hidden_sizes": [8, 16],
    "embedding_size": 8,
}
RUN = f"""
[layout]
precision = "fp32"
global_batch = 4
compiled = false
[optimizer]
learning_rate = 1e-3
final_learning_rate = 1e-4
warmup_steps = 2
[checkpoint]
every_steps = 4
[run]
steps = {STEPS}
log_every = 1
"""
"""What both recipes share."""
TEXT = f"""
[model]
config = "{LIBRARY}"
[data]
path = "text"
tokenizer = "{LIBRARY}"
seq = 64
workers = 0
{RUN}"""
IMAGES = f"""
[model]
config = "net"
[images]
path = "images/train-{{000..001}}.tar"
size = 32
workers = 0
{RUN}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=["s3", "gs"], help="One of the stores.")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_local(folder)
        local = {kind: _trained(folder, kind, "local") for kind in ("text", "images")}
        stores = {"s3": _s3, "gs": _gs}
        for scheme in [given.only] if given.only else stores:
            with stores[scheme](folder) as bucket:
                for kind, address in _uploaded(folder, bucket).items():
                    for how in (_at_once, _killed):
                        found = how(folder, kind, f"{scheme}-{how.__name__[1:]}", address)
                        same = found == local[kind]
                        wrong += not same
                        print(f"{scheme} {kind} {how.__name__[1:]}: {'same' if same else found}")
                wrong += _refused(folder, f"{bucket}-that-is-not-there/prepared", scheme)
    return int(wrong > 0)


def _write_local(folder: Path) -> None:
    (folder / "text").mkdir()
    for source in sorted(Path(json.__file__).parent.glob("*.py")):
        shutil.copy(source, folder / "text" / f"{source.stem}.txt")
    (folder / "text.toml").write_text(TEXT)
    (folder / "images.toml").write_text(IMAGES)
    (folder / "images").mkdir()
    (folder / "net").mkdir()
    (folder / "net" / "config.json").write_text(json.dumps(NET))
    pixels = np.random.default_rng(0)
    for shard in range(2):
        with tarfile.open(folder / "images" / f"train-{shard:03d}.tar", "w") as tar:
            for number in range(20):
                data = io.BytesIO()
                Image.fromarray(pixels.integers(0, 255, (40, 40, 3), np.uint8)).save(data, "PNG")
                for suffix, content in (("png", data.getvalue()), ("cls", b"%d" % (number % 4))):
                    about = tarfile.TarInfo(f"{shard}-{number:03d}.{suffix}")
                    about.size = len(content)
                    tar.addfile(about, io.BytesIO(content))


def _uploaded(folder: Path, bucket: str) -> dict[str, str]:
    """Put what a local run read into a bucket; the addresses by kind."""
    prepared = next(
        path.parent for path in (folder / "text-local" / "tokens").glob("*/manifest.json")
    )
    files, root = fsspec.core.url_to_fs(bucket)
    files.put(f"{prepared}/", f"{root}/prepared/", recursive=True)
    files.put(f"{folder}/images/", f"{root}/images/", recursive=True)
    return {"text": f"{bucket}/prepared", "images": f"{bucket}/images/train-{{000..001}}.tar"}


def _start(folder: Path, kind: str, name: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ridgeline.cli.main", "train", f"{kind}.toml"]
    command += ["--out", f"{kind}-{name}", *options]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _trained(folder: Path, kind: str, name: str, *options: str) -> object:
    """What a run comes to: the last loss, and a sum over all weights."""
    started = _start(folder, kind, name, *options)
    output, _ = started.communicate()
    if started.returncode:
        raise SystemExit(f"{kind} {name}: exit {started.returncode}\n{output}")
    return _outcome(folder / f"{kind}-{name}")


def _outcome(out: Path) -> object:
    loss = json.loads((out / "run.json").read_text())["final_loss"]
    (weights,) = out.rglob("model.safetensors")
    bits = hashlib.sha256()
    with safe_open(weights, "np") as file:
        for name in sorted(file.keys()):
            bits.update(file.get_tensor(name).tobytes())
    return loss, bits.hexdigest()


def _asked(kind: str, address: str, cache: Path) -> list[str]:
    table = "data" if kind == "text" else "images"
    asked = ["--set", f"{table}.path={address}"]
    return asked if kind == "text" else [*asked, "--set", f"images.cache={cache}"]


def _at_once(folder: Path, kind: str, name: str, address: str) -> object:
    return _trained(folder, kind, name, *_asked(kind, address, folder / f"cache-{name}"))


def _killed(folder: Path, kind: str, name: str, address: str) -> object:
    """Kill the run behind its first checkpoint, take what it fetched away, and go on."""
    cache, out = folder / f"cache-{name}", folder / f"{kind}-{name}"
    asked = _asked(kind, address, cache)
    started = _start(folder, kind, name, *asked)
    while started.poll() is None and not any(out.glob("checkpoints/step-*")):
        time.sleep(0.05)
    if started.poll() is not None:
        raise SystemExit(f"{kind} {name} ended before it was killed: {started.stdout.read()}")
    started.send_signal(signal.SIGKILL)
    started.wait()
    shutil.rmtree(cache, ignore_errors=True)
    for one in list(out.rglob("remote.json")):
        shutil.rmtree(one.parent)
    return _trained(folder, kind, name, *asked)


def _refused(folder: Path, address: str, scheme: str) -> bool:
    """Whether a bucket that is not there fails otherwise than by one line and exit code 2."""
    began = time.monotonic()
    started = _start(folder, "text", f"{scheme}-none", *_asked("text", address, folder))
    output, _ = started.communicate()
    lines = [line for line in output.splitlines() if line.startswith("ridgeline: ")]
    good = started.returncode == 2 and len(lines) == 1 and address in lines[0]
    print(f"{scheme} without a bucket, {time.monotonic() - began:.0f} s: {output.strip()[-300:]}")
    return not good


@contextmanager
def _s3(folder: Path) -> Iterator[str]:
    port = _free_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    words = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with _server(words, port, folder / "s3.log"):
        fsspec.filesystem("s3").mkdir("tokens")
        yield "s3://tokens"


@contextmanager
def _gs(folder: Path) -> Iterator[str]:
    port = _free_port()
    os.environ |= {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "FSSPEC_GS_TOKEN": "anon",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks Google itself what kind a bucket is
    }
    words = [sys.executable, "-m", "gcp_storage_emulator", "start", "--host=127.0.0.1"]
    words += [f"--port={port}", "--in-memory", "--default-bucket=tokens"]
    with _server(words, port, folder / "gs.log"):
        yield "gs://tokens"


@contextmanager
def _server(words: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("w") as file:
        started = subprocess.Popen(words, stdout=file, stderr=file)
    try:
        _wait_for(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), started, log)
        yield
    finally:
        started.terminate()
        started.wait()


def _wait_for(connect: Callable[[], None], started: subprocess.Popen[bytes], log: Path) -> None:
    while True:
        try:
            return connect()
        except OSError:
            if started.poll() is not None:
                raise SystemExit(f"the server ended: {log.read_text()[-2000:]}") from None
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
