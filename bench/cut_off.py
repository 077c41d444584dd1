"""A host is cut off from the others for half a minute and comes back: what the run makes of it.

    python -m bench.cut_off [--seconds 30]          (needs root, for `ip netns`)

Three hosts, network namespaces on one machine, train one recipe with `--nodes 2:3`. The last one's
cable is pulled (its port of the switch goes down) and put back. Shown to happen, by the run's own
events: the hang is named, with the host that is not heard from; two ranks go on from a checkpoint;
three go on when the host is back; the run ends with all its steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.namespaces import Hosts

from ridgeline.train.survive.events import Event, read_events

RECIPE = """
[model]
config = "model"
[data]
path = "text"
tokenizer = "bpe:300"
seq = 32
workers = 0
[layout]
dp = 3
micro_batch = 2
global_batch = 12
precision = "fp32"
compiled = false
[optimizer]
learning_rate = 3e-3
final_learning_rate = 3e-4
warmup_steps = 2
[run]
steps = 1000000
log_every = 20
[checkpoint]
every_seconds = 5.0
[survive]
allow_shrink = true
hang_seconds = 6.0
max_restarts = 10
grace_seconds = 15.0
"""
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
_LIMIT_SECONDS = 120.0


def prepare(folder: Path) -> None:
    """A recipe with its model and its text."""
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "text").mkdir()
    for source in sorted(Path(json.__file__).parent.glob("*.py")):
        (folder / "text" / source.with_suffix(".txt").name).write_text(source.read_text())


def ready(events: list[Event]) -> list[tuple[str, Event]]:
    """Each start that came to stand: on how many ranks, and its event."""
    found, ranks = [], ""
    for event in events:
        if event.kind == "started":
            ranks = event.note
        elif event.kind == "ready":
            found.append((ranks, event))
    return found


def until(out: Path, wanted: str, after: float) -> Event:
    """The first start on so many ranks after a moment."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while time.monotonic() < deadline:
        for ranks, event in ready(read_events(out)):
            if ranks == wanted and event.time > after:
                return event
        time.sleep(0.2)
    told = "\n".join(str(event) for event in read_events(out) if event.kind != "step")
    raise TimeoutError(f"never stood on {wanted}:\n{told}")


def experiment(seconds: float) -> list[str]:
    """What happened, in lines."""
    with tempfile.TemporaryDirectory() as name, Hosts(3) as hosts:
        folder = Path(name)
        prepare(folder)
        out = folder / "out"
        command = [
            *(sys.executable, "-m", "ridgeline.cli.main", "train", str(folder / "recipe.toml")),
            *("--out", str(out), "--nodes", "2:3", "--rendezvous", f"{hosts.address(0)}:29400"),
        ]
        for host in range(3):
            hosts.start(host, command, {"OMP_NUM_THREADS": "1"})
        begun = until(out, "3 ranks", 0.0)
        time.sleep(8.0)
        lines = [f"3 ranks stand; after {time.time() - begun.time:.0f} s the cable is pulled"]
        cut = time.time()
        plug(hosts, 2, "down")
        without = until(out, "2 ranks", cut)
        lines.append(f"{without.time - cut:5.1f} s: 2 ranks go on from step {without.step}")
        time.sleep(max(0.0, cut + seconds - time.time()))
        back = time.time()
        plug(hosts, 2, "up")
        lines.append(f"{back - cut:5.1f} s: the cable is back")
        whole = until(out, "3 ranks", back)
        lines.append(f"{whole.time - cut:5.1f} s: 3 ranks go on from step {whole.step}")
        hung = [event for event in read_events(out) if event.kind == "hung"]
        named = [f"{event.time - cut:5.1f} s: {event.note}" for event in hung]
        return [lines[0], *named, *lines[1:]]


def plug(hosts: Hosts, host: int, state: str) -> None:
    """Pull a host's cable out of the switch, or put it back."""
    switch = hosts.name(host).rpartition("-")[0] + "-switch"
    subprocess.run(
        ["ip", "-n", switch, "link", "set", f"port{host}", state], check=True, capture_output=True
    )


def main() -> None:
    """Do it, print what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0)
    sys.stdout.write("\n".join(experiment(parser.parse_args().seconds)) + "\n")


if __name__ == "__main__":
    main()
