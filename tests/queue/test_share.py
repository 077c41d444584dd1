"""`ridgeline queue share` against brute force, and by what every plan has to keep."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.hardware import device
from ridgeline.hardware.mig import MigGeometry, mig_geometry
from ridgeline.queue.share.answer import share_gpus
from ridgeline.queue.share.capacity import PartChoice, part_choices
from ridgeline.queue.share.slots import MODES, Mode, slot_kinds
from ridgeline.queue.share.workload import ISOLATION, ServedWorkload
from ridgeline.records.queue_sharing import SharePlan

LOSSES = {"mps": 0.075, "time-slicing": 0.1}
TABLE = """
[[workload]]
name = "speech"
gpu_share = 0.12
memory_bytes = 6e9
image = "registry.example/speech:1"

[[workload]]
name = "embed"
gpu_share = 0.3
memory_bytes = 9e9
replicas = 2
isolation = "hardware"

[[workload]]
name = "chat"
gpu_share = 1.7
memory_bytes = 30e9
image = "registry.example/chat:1"
"""


def geometry_of(name: str) -> MigGeometry:
    found = mig_geometry(device(name))
    assert found is not None
    return found


def is_placed(geometry: MigGeometry, profiles: list[int], gpus: int) -> bool:
    """Whether instances find room on so many GPUs, each tried at each start of each GPU."""
    used: list[set[int]] = [set() for _ in range(gpus)]

    def place(left: list[int]) -> bool:
        if not left:
            return True
        profile = geometry.profiles[left[0]]
        for row in used:
            empty = not row
            for start in profile.starts:
                span = set(range(start, start + profile.memory))
                if not row & span:
                    row.update(span)
                    if place(left[1:]):
                        return True
                    row.difference_update(span)
            if empty:  # another empty GPU is no other case
                break
        return False

    return place(sorted(profiles, reverse=True))


def naive_cost(chosen: tuple[PartChoice, ...], prices: dict[str, float]) -> float:
    slices: dict[str, list[int]] = {}
    equal: Counter[tuple[str, str, int]] = Counter()
    for one in chosen:
        if one.kind.mode == "mig":
            slices.setdefault(one.kind.device.name, []).extend([one.kind.place] * one.count)
        else:
            equal[one.kind.device.name, one.kind.mode, one.kind.sharers] += one.count
    total = sum(prices[name] * math.ceil(count / each) for (name, _, each), count in equal.items())
    for name, profiles in slices.items():
        gpus = next(n for n in itertools.count(1) if is_placed(geometry_of(name), profiles, n))
        total += prices[name] * gpus
    return total


WORKLOADS = st.lists(
    st.builds(
        lambda share, memory, replicas, isolation: ServedWorkload(
            name="w", gpu_share=share, memory_bytes=memory * 1e9, replicas=replicas,
            isolation=isolation, measured_on="a30",
        ),
        share=st.sampled_from([0.02, 0.1, 0.19, 0.3, 0.6]),
        memory=st.sampled_from([1.0, 5.0, 6.0, 11.0, 20.0]),
        replicas=st.integers(1, 2),
        isolation=st.sampled_from(ISOLATION),
    ),
    min_size=1, max_size=3,
).map(lambda ones: [
    msgspec.structs.replace(one, name=f"w{n}") for n, one in enumerate(ones)
])  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    workloads=WORKLOADS,
    devices=st.sampled_from([["a30"], ["h100"], ["a30", "a100-40gb"]]),
    price=st.sampled_from([0.3, 0.8, 1.5]),
)
def test_no_choice_of_parts_costs_less_than_the_plan(
    workloads: list[ServedWorkload], devices: list[str], price: float
) -> None:
    modes: tuple[Mode, ...] = ("mig", "whole", "mps")
    prices = {device("a30").name: price, device("h100").name: 2.0, device("a100-40gb").name: 1.0}
    found = share_gpus(workloads, devices, allow=modes, prices=prices)
    kinds = [kind for name in devices for kind in slot_kinds(device(name), modes, LOSSES)]
    # Six kinds for each are enough to try them all.
    options = [part_choices(one, kinds, headroom=0.2)[:6] for one in workloads]
    best = min(naive_cost(chosen, prices) for chosen in itertools.product(*options))
    assert found.value <= best + 1e-9
    assert found.at_least <= found.value + 1e-9
    assert found.proved


@settings(max_examples=40, deadline=None)
@given(workloads=WORKLOADS)
def test_a_plan_of_slices_alone_is_as_cheap_as_brute_force(workloads: list[ServedWorkload]) -> None:
    found = share_gpus(workloads, ["a30"], allow=["mig", "whole"], prices={"a30": 1.0})
    kinds = slot_kinds(device("a30"), ["mig", "whole"], LOSSES)
    options = [part_choices(one, kinds, headroom=0.2) for one in workloads]
    best = min(naive_cost(chosen, {"A30": 1.0}) for chosen in itertools.product(*options))
    assert found.proved
    assert found.value == found.num_gpus == pytest.approx(best)


@settings(max_examples=12, deadline=None)
@given(
    shares=st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8),
    memory=st.floats(1.0, 70.0),
    isolation=st.sampled_from(ISOLATION),
    name=st.sampled_from(["h100", "h200", "a100", "l40s"]),
)
def test_every_part_exists_is_large_enough_and_is_given_once(
    shares: list[float], memory: float, isolation: str, name: str
) -> None:
    part = device(name)
    memory = min(memory, part.memory.usable_bytes / 1e9)
    workloads = [
        ServedWorkload(
            name=f"w{place}", gpu_share=share, memory_bytes=memory * 1e9, isolation=isolation,  # type: ignore[arg-type]
            replicas=1 + place % 3,
        )
        for place, share in enumerate(shares)
    ]  # fmt: skip
    found = share_gpus(workloads, [name], most_nodes=300)
    assert found.at_least <= found.value
    assert found.num_gpus == len(found.gpus) <= (found.whole_gpus or math.inf)
    held = Counter(one.workload for gpu in found.gpus for one in gpu.parts if one.workload)
    for asked, one in zip(workloads, found.workloads, strict=True):
        assert held[one.workload] == one.replicas >= asked.replicas
        assert one.part_memory_bytes >= memory * 1e9
        assert one.load <= 0.8 + 1e-9
        assert ISOLATION.index(one.isolation) >= ISOLATION.index(isolation)  # type: ignore[arg-type]
    for gpu in found.gpus:
        assert any(one.workload for one in gpu.parts)
        if gpu.mode == "mig":
            geometry = geometry_of(name)
            places = {profile.name: place for place, profile in enumerate(geometry.profiles)}
            assert is_placed(geometry, [places[one.part] for one in gpu.parts], 1)
        else:
            sharers = len(gpu.parts)
            assert {one.part for one in gpu.parts} == {"1" if sharers == 1 else f"1/{sharers}"}


def shared(capsys: pytest.CaptureFixture[str], *words: str) -> SharePlan:
    assert main.run(["queue", "share", *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=SharePlan)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "workloads.toml"
    path.write_text(TABLE)
    return path


def test_csv_and_toml_say_the_same(
    capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "workloads.csv"
    rows.write_text(
        "name,gpu_share,memory_bytes,replicas,isolation\n"
        "speech,0.12,6e9,,\nembed,0.3,9e9,2,hardware\nchat,1.7,30e9,,none\n"
    )
    assert shared(capsys, str(table), "--device", "h100") == shared(
        capsys, str(rows), "--device", "h100"
    )


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("ways", "resource"),
    [
        ("mig", "nvidia.com/mig-"), ("whole", "nvidia.com/gpu"), ("mps,mig", "nvidia.com/"),
        ("mps,whole", "nvidia.com/gpu"),
    ],
)  # fmt: skip
def test_manifests_pass_our_own_check_and_hold_the_plan(
    ways: str, resource: str, capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = shared(capsys, str(table), "--device", "h100", "--allow", ways, "--write", str(out))
    written = [str(path) for path in sorted(out.glob("*.yaml"))]
    assert main.run(["launch", "--check", *written, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    by_name = {one.workload: one for one in found.workloads}
    for one in yaml.safe_load_all((out / "workloads.yaml").read_text()):
        mine = by_name[one["metadata"]["name"]]
        (container,) = one["spec"]["template"]["spec"]["containers"]
        asked = container["resources"]
        assert asked["limits"] == asked["requests"] == {mine.resource: "1"}
        assert mine.resource.startswith(resource)
        assert one["spec"]["replicas"] == mine.replicas
    lines = (out / "label-nodes.txt").read_text()
    for node in found.nodes:
        assert all(f"{key}={value}" in lines for key, value in node.labels.items())


def test_the_operator_s_configuration_cuts_what_the_plan_cuts(
    capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [str(table), "--device", "h100", "--allow", "mig", "--gpus-per-node", "2"]
    found = shared(capsys, *words, "--write", str(out))
    maps = {one["metadata"]["name"]: one["data"] for one in
            yaml.safe_load_all((out / "gpu-configs.yaml").read_text())}  # fmt: skip
    configs = yaml.safe_load(maps["ridgeline-mig-parted-config"]["config.yaml"])["mig-configs"]
    cut: Counter[str] = Counter()
    for node in found.nodes:
        for entry in configs[node.node]:
            for profile, count in entry.get("mig-devices", {}).items():
                cut[profile] += count * len(entry["devices"]) * node.count
        indices = [index for entry in configs[node.node] for index in entry["devices"]]
        assert sorted(indices) == [0, 1]
    assert cut == Counter(one.part for gpu in found.gpus for one in gpu.parts)


def test_clients_of_mps_are_told_their_threads_and_a_fault_s_reach(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "small.toml"
    path.write_text("".join(
        f'[[workload]]\nname = "m{n}"\ngpu_share = 0.15\nmemory_bytes = 9e9\n' for n in range(8)
    ))  # fmt: skip
    out = tmp_path / "out"
    found = shared(capsys, str(path), "--device", "l40s", "--write", str(out))
    assert {one.mode for one in found.workloads} == {"mps"}
    assert found.workloads[0].thread_percentage == 25.0
    assert "ends all clients" in found.caveats["mps"]
    (maps,) = yaml.safe_load_all((out / "gpu-configs.yaml").read_text())
    plugin = yaml.safe_load(maps["data"]["l40s-mps-4"])
    assert plugin["sharing"]["mps"]["resources"] == [{"name": "nvidia.com/gpu", "replicas": 4}]
    timed = shared(capsys, str(path), "--device", "l40s", "--allow", "time-slicing")
    assert "neither memory nor faults" in timed.caveats["time-slicing"]
    assert any("an assumption" in note for note in timed.notes)


def test_a_predicted_load_meets_its_targets_on_slices_or_needs_more_of_a_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def plan(more: str) -> SharePlan:
        path = tmp_path / "model.toml"
        path.write_text(
            '[[workload]]\nname = "chat"\nmodel = "llama-3-8b"\nprompt = 512\nanswer = 128\n' + more
        )
        return shared(capsys, str(path), "--device", "h100", "--allow", "mig,whole")

    small, quick = plan("rate = 1.0\n"), plan("rate = 1.0\nitl_seconds = 0.012\n")
    assert small.workloads[0].mode == "mig"
    assert small.workloads[0].part_memory_bytes > 16e9  # what the weights take
    assert quick.workloads[0].part_memory_bytes > small.workloads[0].part_memory_bytes
    assert plan("rate = 60.0\n").num_gpus > small.num_gpus
    assert "no run on a part of one" in small.notes[0]


def test_a_load_beyond_all_that_was_fitted_says_so_and_so_does_unseen_hardware(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        '[[workload]]\nname = "tiny"\nmodel = "llama-3.2-1b"\n'
        "rate = 1.0\nprompt = 512\nanswer = 9\n"
    )
    notes = shared(capsys, str(path), "--device", "h200").notes
    assert any(
        one.startswith("the load of tiny is extrapolated, so measure it: parameters 1.236e+09")
        for one in notes
    )
    notes = shared(capsys, str(path), "--device", "rtx-pro-6000").notes
    assert any("no published run of Blackwell with bf16 matmuls is in the fit" in x for x in notes)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (TABLE, "--device h1000", "unknown device 'h1000'; did you mean"),
        (TABLE.replace("0.12", "-0.12"), "--device h100", "workload 1: gpu_share is -0.12; give"),
        (TABLE.replace('"embed"', '"speech"'), "--device h100",
         "workload 2: workload 'speech' stands in workload 1 already"),
        (TABLE.replace("memory_bytes = 30e9", "memory_bytes = 300e9"), "--device h100",
         "workload chat: nothing holds it: the largest part is 1 of H100-SXM-80GB"),
        (TABLE.replace('"speech"', '"Speech!"'), "--device h100", "name 'Speech!'; use lower-case"),
        (TABLE.replace('"hardware"', '"steel"'), "--device h100", "Invalid enum value 'steel'"),
        (TABLE, "--device h100 --device a100", "workload speech: gpu_share is of which device?"),
        (TABLE, "--device h100 --allow magic", "--allow magic: known are mig, whole, mps"),
        (TABLE, "--device h100 --allow mps",
         "workload embed: no way of sharing gives it isolation hardware"),
        (TABLE, "--device h100 --headroom 1", "--headroom is 1; give 0 to below 1"),
        (TABLE, "--device h100 --price h100=free", "--price h100=free: write DEVICE=USD"),
        (TABLE, "--device h100 --price h1000=2", "unknown device 'h1000'"),
        (TABLE, "--device h100 --gpus-per-node 0", "--gpus-per-node is 0"),
        (TABLE, "--device h100 --mps-loss 1", "--mps-loss is 1"),
        (TABLE + 'model = "gpt2"\n', "--device h100", "workload 3: give gpu_share and"),
        (TABLE + "gpus = 0\n", "--device h100", "workload 3: gpus is 0; give 1 to 10,000"),
        ("workload = []\n", "--device h100", "no workload in it"),
        ('[[workload]]\nname = "m"\nmodel = "gpt2"\nrate = 1\n', "--device h100",
         "workload 1: prompt is 0; give a number above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(
    content: str, words: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "workloads.toml"
    path.write_text(content)
    assert main.run(["queue", "share", str(path), *words.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name,gpu_share,memory_bytes\na,0.1\n", "line 2: 2 cells under 3 columns"),
        ("name,gpu_share,memory_bytes\na,much,3\n", "line 2: Expected `float | null`, got `str`"),
        ("name,gpu_share,memory_bytes\na,nan,3\n", "line 2: gpu_share is nan"),
        ("name,share\na,0.1\n", "a column 'share'; known are name, gpu_share"),
        ("gpu_share\n0.1\n", "no column name"),
        (
            "name,gpu_share,memory_bytes\na,0.1,3\na,0.1,3\n",
            "line 3: workload 'a' stands in line 2",
        ),
    ],
)
def test_a_row_that_cannot_be_is_named_by_its_line(
    content: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "workloads.csv"
    path.write_text(content)
    assert main.run(["queue", "share", str(path), "--device", "h100"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_many_workloads_are_shared_out_in_seconds_and_near_the_bound() -> None:
    workloads = [
        ServedWorkload(name=f"w{place}", gpu_share=0.03 + 0.07 * (place % 9),
                       replicas=1 + place % 2, memory_bytes=3e9 + 4.5e9 * (place % 7))
        for place in range(25)
    ]  # fmt: skip
    found = share_gpus(workloads, ["h100"], most_nodes=500)
    assert found.value <= 1.1 * found.at_least
    assert found.num_gpus < 0.5 * (found.whole_gpus or 0)
    assert set(found.caveats) <= set(MODES)
