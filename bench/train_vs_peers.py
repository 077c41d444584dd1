"""`ridgeline train` beside HF Trainer and Lightning: the same model, tokens and precision.

    python bench/train_vs_peers.py [ROUNDS] [bf16|fp32]

Every round starts each of the three in its own process, in turn and in changing order; each trains
the same random Llama on the same token file with AdamW and reports its median step after warm-up.
Printed are tokens per second and the ratios of the others to Ridgeline (Hodges-Lehmann estimate
over the rounds with its Wilcoxon interval), and the loss each reached.
"""

import json
import platform
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

from ridgeline.measure.statistics.intervals import ratio_interval

STEPS, WARM = 60, 15
BATCH, SEQ = 8, 256
SCRIPTS = Path(__file__).parent / "scripts" / "peers_of_train"
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": SEQ,
    "tie_word_embeddings": True,
}
RECIPE = """
[model]
config = "{folder}/config.json"
[data]
path = "{text}"
pattern = "*.py"
tokenizer = "bpe:2048"
seq = {seq}
[layout]
micro_batch = {batch}
global_batch = {batch}
precision = "{precision}"
compiled = false
[optimizer]
learning_rate = 1e-3
final_learning_rate = 1e-3
schedule = "constant"
warmup_steps = 0
[checkpoint]
keep = 0
[run]
steps = {steps}
log_every = 20
"""


def ridgeline(folder: Path) -> tuple[float, float]:
    run = json.loads(
        subprocess.check_output(
            [
                sys.executable,
                "-m",
                "ridgeline.cli.main",
                "train",
                folder / "recipe.toml",
                "--fresh",
                "--json",
            ],
            text=True,
            stderr=subprocess.DEVNULL,
        )
    )
    samples = sorted(run["step_samples"][WARM:])
    return samples[len(samples) // 2], run["final_loss"]


def peer(name: str, precision: str):
    def measure(folder: Path) -> tuple[float, float]:
        output = subprocess.check_output(
            [sys.executable, SCRIPTS / f"{name}.py", folder, precision, str(STEPS), str(WARM)],
            text=True,
            stderr=subprocess.DEVNULL,
        )
        seconds, loss = output.strip().splitlines()[-1].split()
        return float(seconds), float(loss)

    return measure


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    precision = sys.argv[2] if len(sys.argv) > 2 else "bf16"
    ways = {
        "ridgeline": ridgeline,
        "HF Trainer": peer("hf_trainer", precision),
        "Lightning": peer("lightning_trainer", precision),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        text = sysconfig.get_path("stdlib")
        (folder / "recipe.toml").write_text(
            RECIPE.format(
                folder=folder, text=text, seq=SEQ, batch=BATCH, precision=precision, steps=STEPS
            )
        )
        ridgeline(folder)  # tokens are made once, before anything is timed
        for number in range(rounds):
            order = list(ways)
            order = order[number % len(order) :] + order[: number % len(order)]
            for way in order:
                step, losses[way] = ways[way](folder)
                seconds[way].append(step)
            print(f"round {number + 1}/{rounds}", file=sys.stderr)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {precision}")
    for way, steps in seconds.items():
        middle = sorted(steps)[rounds // 2]
        line = f"{way:12s} {BATCH * SEQ / middle:8.0f} tokens/s   loss {losses[way]:.3f}"
        if way != "ridgeline":
            interval = ratio_interval(steps, seconds["ridgeline"])
            line += f"   {interval.ratio:.3f}x our step [{interval.low:.3f}, {interval.high:.3f}]"
        print(line)


if __name__ == "__main__":
    main()
