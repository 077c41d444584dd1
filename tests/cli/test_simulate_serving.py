"""`ridgeline simulate serving` as it is typed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.plan.simulate.test_fit import log

from ridgeline.cli.main import run
from ridgeline.records.load_test import LoadTest
from ridgeline.records.simulated import Simulated
from ridgeline.records.step_log import COLUMNS, line

GPU = ("simulate", "serving", "--model", "llama3.1-8b", "--gpu", "H100")
FEW = ("--rate", "8", "--requests", "60", "--input-tokens", "900", "--output-tokens", "120")
TRACES = Path(__file__).parents[3] / "shared/data/request_traces"


def simulated(capsys: pytest.CaptureFixture[str], *options: str) -> Simulated:
    code = run([*options, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return msgspec.json.decode(out, type=Simulated)


def complaint(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert run(list(options)) == 2
    out, err = capsys.readouterr()
    assert not out
    return err.splitlines()[-1]


def test_the_json_has_every_key_of_a_load_test_and_an_interval(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run([*GPU, *FEW, "--json"])
    found = msgspec.json.decode(capsys.readouterr().out)
    keys = {
        msgspec.structs.fields(LoadTest)[i].encode_name
        for i in range(len(LoadTest.__struct_fields__))
    }
    assert keys | {"interval"} <= set(found)
    assert {"sent", "ok", "failed"} <= set(found["requests"])
    assert {"p50", "p90", "p99", "p99.9"} <= set(found["ttft_seconds"])
    assert {"send_lag_p99", "cpu_share"} <= set(found["client"])


def test_figures_lie_within_their_interval(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(capsys, *GPU, *FEW)
    assert found.requests.ok == 60
    for name in ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds"):
        one, band = getattr(found, name), getattr(found.interval, name)
        for column in ("mean", "p50", "p90", "p99"):
            low, high = getattr(band, column)
            assert low <= getattr(one, column) <= high
    assert found.interval.tpot_seconds.p50[0] < found.tpot_seconds.p50


def test_the_same_seed_gives_the_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (simulated(capsys, *GPU, *FEW, "--seed", "4") for _ in range(2))
    assert one == other


def test_other_fleets_stand_beside_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--what-if", "tp=2", "--what-if", "replicas=2,router=least-open", "--no-interval")
    found = simulated(capsys, *GPU, *FEW, *options)
    faster, more = found.what_if
    assert found.interval is None
    assert faster.change == "tp=2"
    assert faster.figures.tpot_seconds.p50 < found.tpot_seconds.p50
    assert more.fleet.most_replicas == 2
    page = tmp_path / "page.html"
    assert run([*GPU, *FEW, *options, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "as asked" in shown
    assert "tp=2" in shown
    assert "How latencies spread" in page.read_text()


def test_a_fleet_scales_as_serve_would(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    options = ("--replicas", "1:3", "--scale-target", "4", "--startup", "2", "--rate", "20")
    others = ("--what-if", "replicas=1:2", "--what-if", "startup=1000")
    others += ("--what-if", "replicas=1", "--what-if", "scale-target=1000,scale-up-after=9")
    found = simulated(
        *(capsys, *GPU, *FEW, "--requests", "300", *options, *others),
        *("--no-interval", "--html", str(page)),
    )
    assert found.fleet.most_replicas == 3
    fewer, late, fixed, lazy = found.what_if
    assert fewer.fleet.most_replicas == 2
    assert (fixed.fleet.most_replicas, lazy.fleet.most_replicas) == (1, 1)
    assert late.figures.e2e_seconds.p50 > found.e2e_seconds.p50
    assert "Replicas over the run" in page.read_text()


@pytest.mark.skipif(not TRACES.exists(), reason="../shared/data is not here")
def test_a_trace_is_replayed_with_what_its_prompts_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = ("--trace", str(TRACES / "mooncake_conversation_head.jsonl"), "--requests", "150")
    found = simulated(capsys, *GPU, *trace, "--no-interval", "--warmup", "0")
    cold = simulated(capsys, *GPU, *trace, "--no-interval", "--warmup", "0", "--no-prefix-cache")
    assert found.lengths.cached_share > 0.02
    assert cold.lengths.cached_share == 0.0


def test_a_measured_engine_needs_no_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    steps.write_text(",".join(COLUMNS) + "\n" + "".join(map(line, log(0.1))))
    measured = ("simulate", "serving", "--steps", str(steps))
    load = ("--rate", "1", "--requests", "40", "--input-tokens", "200", "--output-tokens", "20")
    found = simulated(
        capsys, *measured, "--kv-blocks", "500", "--max-tokens-per-step", "512", *load
    )
    assert found.model == "measured engine"
    assert 0.2 < found.ttft_seconds.p50 < 2.0
    assert "--kv-blocks" in complaint(capsys, *measured, *load)
    assert "tells of the engine" in complaint(capsys, *measured, *load, "--gpu", "H100")
    assert "the log holds for" in complaint(
        capsys, *measured, "--kv-blocks", "500", *load, "--rate", "50", "--input-tokens", "2000"
    )


@pytest.mark.slow
def test_ctrl_c_ends_it_with_what_was_seen() -> None:
    command = [sys.executable, "-m", "ridgeline.cli.main", *GPU, "--rate", "20", "--json"]
    process = subprocess.Popen(
        [*command, "--requests", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for said in process.stderr:
        if b"5000 requests sent" in said:
            break
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    found = msgspec.json.decode(out, type=Simulated)
    assert found.interrupted
    assert found.requests.ok > 1000
    assert found.interval is None


def test_a_prefill_device_with_more_arithmetic_gives_earlier_first_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = ("simulate", "serving", "--model", "llama3.1-8b", "--gpu", "A100-SXM-80GB", *FEW)
    split = ("--replicas", "3", "--prefill-replicas", "1", "--no-interval")
    what_if = ("--what-if", "prefill_gpu=,prefill_tp=0", "--what-if", "prefill_tp=2")
    strong = simulated(capsys, *slow, *split, "--prefill-gpu", "H100", *what_if)
    alike = simulated(capsys, *slow, *split)
    assert (strong.deployment["prefill_gpu"], strong.deployment["gpu"]) == ("H100", "A100-SXM-80GB")
    back, two = (one.figures.ttft_seconds for one in strong.what_if)
    assert strong.ttft_seconds is not None
    assert back is not None
    assert two is not None
    assert back == alike.ttft_seconds
    assert two.p50 < strong.ttft_seconds.p50 < 0.8 * back.p50


@pytest.mark.sweep(every=4)
def test_a_tree_of_guesses_takes_as_many_rounds_as_its_formula_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*GPU, "--rate", "0.01", "--requests", "40", "--input-tokens", "16", "--warmup", "0",
             "--output-tokens", "400", "--no-interval", "--draft-cost", "0")  # fmt: skip
    tree = (*asked, "--draft-tree", "5", "--accuracies", "0.5x0.3,0.4x0.2")
    found = simulated(capsys, *tree, "--what-if", "draft_tree=2,accuracies=0.5x0.3,0.2")
    one = 1 + 0.5 + 0.3 + 0.5 * 0.4 + 0.3 * 0.4 + 0.5 * 0.2
    rounds = [one, 1 + 0.5 + 0.3]
    for fleet, tokens in zip((found.fleet, found.what_if[0].fleet), rounds, strict=True):
        assert fleet.steps / 40 == pytest.approx(1 + 399 / tokens, rel=0.02)


def test_kept_tokens_hold_a_bounded_cache_and_read_less(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = (*GPU, "--rate", "50", "--requests", "60", "--input-tokens", "6000", "--no-interval",
             "--output-tokens", "60", "--kv-blocks", "1600", "--warmup", "0")  # fmt: skip
    found = simulated(capsys, *asked, "--what-if", "kv_recent=500")
    whole, some = found, found.what_if[0].figures
    assert some.requests.ok == whole.requests.ok == 60
    # 1600 blocks hold 4 whole requests of 379, or 32 of at most 50.
    assert some.output_tokens_per_second is not None
    assert whole.output_tokens_per_second is not None
    assert some.output_tokens_per_second > 1.4 * whole.output_tokens_per_second
    longer = (*GPU, "--requests", "2", "--input-tokens", "6000", "--output-tokens", "9",
              "--no-interval", "--kv-blocks", "64", "--warmup", "0")  # fmt: skip
    assert "a request has 6009" in complaint(capsys, *longer)
    assert simulated(capsys, *longer, "--kv-recent", "500").requests.ok == 2


HPA = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: server}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server}
  minReplicas: %s
  maxReplicas: 3
  metrics:
  - type: Pods
    pods:
      metric: {name: ridgeline_open_requests}
      target: {type: AverageValue, averageValue: "%s"}
"""


def test_an_autoscalers_manifest_decides_as_kubernetes_will(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    eager, lazy = tmp_path / "eager.yaml", tmp_path / "lazy.yaml"
    eager.write_text(HPA % (1, 2))
    lazy.write_text(HPA % (1, 500))
    load = (*GPU, *FEW, "--requests", "300", "--startup", "2", "--no-interval")
    other = ("--what-if", "scale-target=1000")
    found = simulated(capsys, *load, "--autoscaler-manifest", str(eager), *other)
    assert found.fleet.most_replicas == 3
    assert found.what_if[0].fleet.most_replicas == 1  # it has left the manifest
    looks = [time for time, _ in found.fleet.replicas[1:]]
    assert looks
    assert all((time % 15.0) in (0.0, 2.0) for time in looks)  # once in 15 s, ready 2 s later
    found = simulated(capsys, *load, "--autoscaler-manifest", str(lazy))
    assert found.fleet.most_replicas == 1


def test_an_autoscalers_manifest_that_cannot_be_simulated_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "hpa.yaml"
    path.write_text(HPA % (0, 2))
    option = ("--autoscaler-manifest", str(path))
    assert "a replica at any time" in complaint(capsys, *GPU, *option)
    assert "leave --replicas" in complaint(capsys, *GPU, *option, "--replicas", "1:4")
    path.write_text("apiVersion: apps/v1\nkind: Deployment\n")
    assert "0 autoscalers in it" in complaint(capsys, *GPU, *option)
    path.write_text(
        "apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nspec: {maxReplicas: 3}"
    )
    assert "launch --check" in complaint(capsys, *GPU, *option)
    path.write_text(
        (HPA % (1, 2)).replace("type: Pods\n    pods:", "type: Resource\n    resource:")
    )
    assert "Resource is not read" in complaint(capsys, *GPU, *option)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((*GPU, "--draft-tree", "4"), "say --accuracies"),
        ((*GPU, "--draft-tree", "4", "--drafts", "2"), "--drafts 2 is of a chain"),
        ((*GPU, "--accuracies", "0.5"), "say --draft-tree N"),
        ((*GPU, "--kv-recent", "64", "--no-chunked-prefill"), "leave out --no-chunked-prefill"),
        ((*GPU, "--kv-recent", "64", "--kv-blocks", "9"), "a smaller --kv-recent"),
        (
            (*GPU, "--kv-recent", "64", "--replicas", "2", "--prefill-replicas", "1"),
            "not handed over",
        ),
        (("simulate", "serving"), "--model and --gpu, or --steps"),
        ((*GPU, "--what-if", "color=red"), "nothing that can be changed"),
        ((*GPU, "--what-if", "tp=many"), "--what-if tp=many"),
        ((*GPU, "--what-if", "dynamic-delay=slow"), "at `$.dynamic_delay_seconds`"),
        ((*GPU, "--what-if", "batching=all"), "one of continuous, static, dynamic"),
        ((*GPU, "--what-if", "draft_tree=16"), "ridgeline: --what-if draft_tree=16: --draft-tree"),
        ((*GPU, "--what-if", "scale_maximum=2,replicas=3"), "not within 3:2"),
        (
            (*GPU, "--what-if", "scale_on=slo,scale_maximum=2,scale_objective=3,scale_ttft=1"),
            "objective",
        ),
        ((*GPU, "--what-if", "replicas=1:2,scale-on=slo"), "say what a miss is"),
        ((*GPU, "--what-if", "scale-up-after=5"), "nothing scales; say bounds"),
        ((*GPU, "--what-if", "replicas=1:2,scale-target=many"), "at `$.open_per_replica`"),
        ((*GPU, "--router", "best"), "'--router': 'best' is not one"),
        ((*GPU, "--prefill-replicas", "1"), "at least one has to be left to decode"),
        ((*GPU, "--prefill-gpu", "B200"), "--prefill-gpu B200: say --prefill-replicas N"),
        ((*GPU, "--prefill-tp", "2"), "--prefill-tp 2: say --prefill-replicas N"),
        (
            (*GPU, "--replicas", "2", "--prefill-replicas", "1", "--prefill-gpu", "X9"),
            "unknown device 'X9'",
        ),
        (
            (
                "simulate",
                "serving",
                "--model",
                "llama-2-70b",
                "--gpu",
                "H200",
                "--tp",
                "2",
                "--replicas",
                "2",
                "--prefill-replicas",
                "1",
                "--prefill-gpu",
                "L4",
            ),
            "on 2 x L4",
        ),
        ((*GPU, "--acceptance", "2"), "--acceptance 2"),
        ((*GPU, "--alone", "x.json"), "--alone belongs to --steps"),
        ((*GPU, "--input-tokens", "9000000"), "outside what the model was fitted to"),
        ((*GPU, "--trace", "nowhere.csv"), "nowhere.csv"),
        ((*GPU, "--scale-on", "queue"), "nothing scales"),
    ],
)
def test_what_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], says: str
) -> None:
    assert says in complaint(capsys, *options)
