"""Batches of samples of like length: the same samples in as many batches, with less padding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.techniques.profiles import faulty, replaced

from ridgeline.cli.main import run
from ridgeline.records import Site
from ridgeline.techniques import technique
from ridgeline.techniques.length_buckets import WINDOW, bucketed
from ridgeline.tune.patch import write_patch

BUCKETS = technique("length-buckets")
FAULTY = faulty()["length-buckets"]
SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

EPOCHS = int(sys.argv[1])
torch.manual_seed(0)
made = torch.Generator().manual_seed(1)
lengths = torch.randint(2, 120, (800,), generator=made).tolist()


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return len(lengths)

    def __getitem__(self, index):
        ids = 1 + (torch.arange(lengths[index]) * (index + 3)) % 96
        return {"ids": ids, "label": index % 2, "index": index}


def collate(samples):
    ids = pad_sequence([one["ids"] for one in samples], batch_first=True, padding_value=0)
    WIDTH
    labels = torch.tensor([one["label"] for one in samples])
    return {"ids": ids, "labels": labels, "index": [one["index"] for one in samples]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(97, 96, padding_idx=0)
        self.layers = nn.Sequential(*(nn.Linear(96, 96) for _ in range(3)))
        self.head = nn.Linear(96, 2)

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1)
        hidden = torch.relu(self.layers(self.words(ids))) * mask
        return self.head(hidden.sum(1) / mask.sum(1))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(Texts(), batch_size=8, shuffle=True, collate_fn=collate)
for epoch in range(EPOCHS):
    seen, tokens, batches, first = [], 0, 0, None
    for batch in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["ids"]), batch["labels"]).backward()
        optimizer.step()
        first = first or batch["index"]
        seen += batch["index"]
        tokens += batch["ids"].numel()
        batches += 1
    print(batches, sorted(seen) == list(range(800)), tokens, sum(first), float(torch.rand(())))
"""
FIXED = SCRIPT.replace("WIDTH", "ids = nn.functional.pad(ids, (0, 120 - ids.shape[1]))")
STACK = "[[technique]]\nname = 'length-buckets'\n[technique.options]\ndataset = 'Texts'\n"


def epochs(words: str) -> list[list[str]]:
    return [line.split() for line in words.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_every_epoch_has_the_same_samples_in_as_many_batches_and_fewer_tokens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = "torch.set_num_threads(1)\ntorch.manual_seed(0)"  # threads of tiny matmuls only wait
    for name, text in (("train.py", SCRIPT.replace("WIDTH", "pass")), ("fixed.py", FIXED)):
        Path(name).write_text(text.replace("torch.manual_seed(0)", alone))
    Path("none.toml").write_text("")
    Path("stack.toml").write_text(STACK)
    said = {}
    for stack, script in (
        ("none.toml", "train.py"),
        ("stack.toml", "train.py"),
        ("none.toml", "fixed.py"),
        ("stack.toml", "fixed.py"),
    ):
        assert run(["run", "--stack", stack, "--", script, "2"]) == 0
        said[stack, script] = epochs(capfd.readouterr().out)
    before, after = said["none.toml", "train.py"], said["stack.toml", "train.py"]
    for plain, sorted_ in zip(before, after, strict=True):
        assert sorted_[:2] == plain[:2] == ["100", "True"]
        assert int(sorted_[2]) < 0.75 * int(plain[2])
        assert sorted_[4] == plain[4], "the script's own random numbers are others"
    assert after[0][3] != after[1][3], "both epochs begin with the same batch"
    assert said["none.toml", "fixed.py"] == said["stack.toml", "fixed.py"]
    lines = Path("train.py").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.startswith("loader = "))
    site = Site(file="train.py", line=line)
    loaders = [replace(one, site=site) for one in FAULTY.profile.loaders]
    edits = BUCKETS.edits(replaced(FAULTY, loaders=loaders), {"dataset": "Texts"})
    patch = write_patch([("length-buckets", edit) for edit in edits], tmp_path, tmp_path)
    assert not patch.unplaced
    (written,) = patch.files.values()
    Path("train.py").write_text(written)
    assert run(["run", "--stack", "none.toml", "--", "train.py", "2"]) == 0
    assert epochs(capfd.readouterr().out) == after, "the patch trains on other batches"


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_tune_proves_it_where_batches_are_padded_to_their_longest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    wide = SCRIPT.replace("*(nn.Linear(96, 96) for", "*(nn.Linear(96, 96) if i % 2 else WIDE for")
    wide = wide.replace("for _ in range(3)", "for i in range(4)")
    wide = wide.replace("WIDE", "nn.Sequential(nn.Linear(96, 768), nn.ReLU(), nn.Linear(768, 96))")
    script.write_text(wide.replace("WIDTH", "pass").replace("batch_size=8", "batch_size=32"))
    words = ["tune", "--only", "length-buckets", "--budget", "120", "--out", str(tmp_path / "out")]
    assert run([*words, "--json", "--", str(script), "4000"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    (row,) = ledger["rows"]
    assert row["kept"], row
    assert row["multiplier"] > 1.1
    assert "seed" in row["verification"]


@given(
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=400),
    batch=st.integers(1, 7),
)
def test_no_sample_is_lost_or_seen_twice(sizes: list[int], batch: int) -> None:
    order = [(index * 7919 + 13) % len(sizes) for index in range(len(sizes))]
    order = list(dict.fromkeys(order)) + [i for i in range(len(sizes)) if i not in set(order)]
    given_ = [order[start : start + batch] for start in range(0, len(order), batch)]
    made = bucketed(given_, sizes)
    assert sorted(map(len, made)) == sorted(map(len, given_))
    assert len(made[-1]) == len(given_[-1])
    assert sorted(i for one in made for i in one) == list(range(len(sizes)))
    window = WINDOW * batch
    for start in range(0, len(order) - window, window):  # samples stay in their window
        ahead = {i for one in made[: (start + window) // batch] for i in one}
        assert ahead == set(order[: start + window])


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ({"num_workers": 2}, "workers make the batches"),
        ({"num_batches": None}, "the data set has no length"),
        ({"fetch_seconds": 1.0, "num_batches": 100}, "learning the lengths of all samples takes"),
    ],
)
def test_a_loader_whose_order_cannot_be_changed_is_left_alone(
    loader: dict[str, object], reason: str
) -> None:
    loaders = [replace(one, **loader) for one in FAULTY.profile.loaders]
    assert BUCKETS.applies(replaced(FAULTY, loaders=loaders)).reason.startswith(reason)


def test_batches_of_one_width_are_left_alone() -> None:
    whole = [replace(op, calls=1.0) for op in FAULTY.profile.operators]
    assert "one width" in BUCKETS.applies(replaced(FAULTY, operators=whole)).reason
