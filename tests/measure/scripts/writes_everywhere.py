"""Writes through every door that a training script has, again and again; `programs`: by others too,
`torch`: among them by a child with torch. `plain`: without a model of transformers.

Beside it lie `old.txt`, `old.pt`, `old.bin`, `kept/inner.txt`, `gone/inner.txt` and `link`.
"""

import logging
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pandas
import safetensors.torch
import torch
import torch.distributed.checkpoint
import wandb
from torch import nn
from torch.utils.tensorboard import SummaryWriter

torch.manual_seed(0)
logging.basicConfig(filename="train.log", level=logging.INFO)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter("events")
here = Path.cwd()
assert wandb.mode == "offline"
assert wandb.init("project", mode="online") == "offline"
assert wandb.init(mode="disabled") == "disabled"
# There is no such account, nor any network.
if "plain" in sys.argv:
    huggingface_hub.HfApi().create_repo("someone/model")
else:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=11, n_positions=8))
    small.push_to_hub("someone/model")


def write(step):
    state = model.state_dict()
    torch.save(state, "old.pt")
    with open("new.pt", "wb") as file:
        torch.save(state, file)
    torch.save(state, "beside.tmp")
    os.replace("beside.tmp", "moved.pt")
    safetensors.torch.save_file(state, "old.safetensors")
    safetensors.torch.save_file(state, "model.safetensors")
    torch.distributed.checkpoint.save(state, checkpoint_id="sharded")
    if "plain" not in sys.argv:
        small.save_pretrained("pretrained")
    writer.add_scalar("loss", 1.0, step)
    writer.flush()
    for mode, name in (
        ("w", "written.txt"),
        ("a", "old.txt"),
        ("r+", "old.bin"),
        ("x", "only.txt"),
    ):
        if mode == "x" and os.path.exists(name):
            os.remove(name)
        with open(name, mode) as file:
            file.write(f"step {step}\n")
    Path("path.txt").write_text("text")
    Path("old.bin").write_bytes(b"bytes")
    (here / "kept" / "inner.txt").write_text("through an absolute path")
    descriptor = os.open("low.bin", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"low")
    os.close(descriptor)
    with open("pickled", "wb") as file:
        pickle.dump(state, file)
    table = pandas.DataFrame({"loss": [1.0]})
    table.to_csv("table.csv")
    table.to_parquet("table.parquet")
    with sqlite3.connect("runs.db") as database:
        database.execute("create table if not exists runs (step integer)")
        database.execute("insert into runs values (?)", (step,))
    database.close()
    logging.getLogger().info("step %d", step)
    os.makedirs("made/deep", exist_ok=True)
    Path("made/deep/file").write_text("x")
    shutil.rmtree("gone", ignore_errors=True)
    if os.path.exists("renamed"):
        shutil.rmtree("renamed")
    if os.path.exists("whole"):
        os.rename("whole", "renamed")
    Path("removed.txt").unlink(missing_ok=True)
    os.chmod("old.txt", 0o600)
    os.utime("old.bin", (1, 1))
    if os.path.islink("link"):
        os.unlink("link")
    if not os.path.exists("linked.txt"):
        os.link("old.txt", "linked.txt")
        os.symlink("old.txt", "pointer")
    with open("cut.txt", "r+") as file:
        file.truncate(1)
    os.truncate("cut.txt", 0)
    shutil.copy("old.bin", "copied.bin")
    shutil.move("copied.bin", "moved.bin")
    if "programs" in sys.argv:
        subprocess.run(["cp", "old.txt", "by_cp.txt"], check=True)
        subprocess.run("rm -f by_rm.txt; echo x >> by_sh.txt; mv by_mv.txt by_mv2.txt", shell=True)
        code = "import torch; torch.save({}, 'by_child.pt'); open('by_child.txt', 'w').write('x')"
        if step == 1 and "torch" in sys.argv:
            subprocess.run([sys.executable, "-c", code], check=True)


for step in range(1, int(sys.argv[1]) + 1):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 1:
        write(step)
