"""A model cut into stages: the tokens of one process, in float32."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.serve.engine.workloads import (
    LIBRARY,
    answers,
    finished,
    greedy,
    plain_greedy,
    tiny_engine,
    write_tiny_llama,
)
from tests.serve.http.servers import running, until
from tests.serve.model.tiny_families import FITTING, OWN_ATTENTION, WITH_STATES, tiny
from tests.serve.tensor_parallel.test_killed_rank import kill_and_wait, rank_of
from tests.serve.tensor_parallel.test_tokens import PROMPTS, tokens_of
from tests.serve.tensor_parallel.test_tokens import running as engine_of

from ridgeline.errors import InputError
from ridgeline.serve.config import SpeculationConfig
from ridgeline.serve.engine import step_rows
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Abort
from ridgeline.serve.pipeline_parallel.stages import LayerStage, stage_bounds

pytestmark = pytest.mark.multiprocess
CUT = sorted(
    {*FITTING}
    - {*WITH_STATES, *OWN_ATTENTION}
    - {"gpt2", "opt", "gpt_neox", "hunyuan_v1_moe", "gemma3n_text"}
)
"""The families that transformers has a plan of stages for; Gemma 3n's last layers read keys of
layers that another stage would hold."""


@pytest.fixture(autouse=True)
def few_are_dealt_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a handful of requests has several steps under way."""
    monkeypatch.setattr(step_rows, "LEAST_SEQUENCES", 1)


def weight_bytes(engine: ServingEngine) -> int:
    return engine.model.weight_bytes()


@pytest.mark.slow
def test_three_stages_give_the_tokens_of_one_process(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path, num_hidden_layers=4, tie_word_embeddings=True)
    settings: dict[str, Any] = {
        "speculation": SpeculationConfig(kind="ngram", always=True),
        "max_tokens_per_step": 24,
    }
    with engine_of(folder, **settings) as whole:
        expected = tokens_of(whole, PROMPTS)
        weights = weight_bytes(whole)
    with engine_of(folder, pp=3, **settings) as engine:
        assert tokens_of(engine, PROMPTS) == expected
        ledger, stats, own = engine.ready.ledger, engine.stats(), weight_bytes(engine)
    assert ledger.ranks == 3
    assert ledger.layers == "one by one: 3 ranks pass states on"
    assert own < weights
    assert stats.prefix_hits
    assert 0 < stats.collective_seconds < stats.step_seconds


@pytest.mark.slow
def test_all_stages_have_a_step_of_their_own_and_withdrawn_requests_disturb_none(
    tmp_path: Path,
) -> None:
    folder = write_tiny_llama(tmp_path, num_hidden_layers=4)
    prompts = {f"{name} {index}": prompt for index in range(3) for name, prompt in PROMPTS.items()}
    # So little room that requests are thrown out.
    settings: dict[str, Any] = {"max_tokens_per_step": 24, "debug": True}
    with engine_of(folder, **settings) as whole:
        expected = tokens_of(whole, prompts)
    with engine_of(folder, pp=3, kv_bytes=4 * 24 * 2048, **settings) as engine:
        for name, prompt in prompts.items():
            engine.handle(greedy(name, prompt, 16))
        under_way = []
        for _ in range(12):
            engine.step()
            under_way.append(len(engine._flights))
        engine.handle(Abort(id="cold 1"))
        engine.handle(Abort(id="other 2"))
        found = answers(finished(engine))
        assert engine.stats().preemptions
        assert not engine._flights
    assert max(under_way) == 2  # and a third one within a step
    kept = {one: tokens for one, tokens in expected.items() if one[0] not in ("cold 1", "other 2")}
    assert {one: found[one] for one in kept} == kept


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3_text"])
def test_a_grid_of_stages_and_shares_gives_the_tokens_of_the_plain_model(
    tmp_path: Path, family: str
) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    with engine_of(tmp_path, pp=2, tp=2, max_tokens_per_step=24) as engine:
        found = tokens_of(engine, PROMPTS)
        ledger = engine.ready.ledger
        own = weight_bytes(engine)
    for name, prompt in PROMPTS.items():
        assert found[name, 0] == plain_greedy(model, prompt, 16), (family, name)
    assert ledger.ranks == 4
    assert ledger.layers == (
        "one by one: 4 ranks add up what they have twice a layer and pass states on"
    )
    assert own < 0.6 * sum(weight.nbytes for weight in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("family", CUT)
def test_every_family_with_a_plan_gives_the_tokens_of_the_plain_model(
    tmp_path: Path, family: str
) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    with engine_of(tmp_path, pp=2) as engine:
        found = tokens_of(engine, PROMPTS)
    for name, prompt in PROMPTS.items():
        assert found[name, 0] == plain_greedy(model, prompt, 16), (family, name)


def test_every_layer_belongs_to_one_stage() -> None:
    for layers in range(1, 40):
        for size in range(1, layers + 1):
            bounds = [stage_bounds(layers, size, rank) for rank in range(size)]
            assert [at for first, last in bounds for at in range(first, last)] == [*range(layers)]
            counts = [last - first for first, last in bounds]
            assert min(counts) > 0
            assert counts == sorted(counts)
            assert counts[-1] - counts[0] <= 1


def test_a_stages_tensors_are_counted_from_zero() -> None:
    stage = LayerStage("model.layers.", 2, 4, is_first=False)
    assert stage.own_name("model.layers.3.mlp.weight") == "model.layers.1.mlp.weight"
    assert stage.own_name("model.layers.4.mlp.weight") is None
    assert stage.own_name("model.embed_tokens.weight") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pp": 99}, r"--pp 99: the model has \d+ layers; give as many or less"),
        ({"pp": 99, "tp": 2}, r"--pp 99: the model has \d+ layers"),
        ({"pp": 2, "tp": 2, "compiled": True}, "--tp 2 --pp 2: --compiled is for one process"),
        ({"pp": 2, "adapters": {"a": "folder"}}, "--pp 2: LoRA adapters are not cut"),
        ({"pp": 2, "compiled": True}, "--pp 2: --compiled is for one process"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_engine(LIBRARY, **changes)


@pytest.mark.parametrize(
    ("family", "says"),
    [
        ("gpt2", "no plan of how to cut models of the family gpt2 into"),
        ("gemma3n_text", "the last layers of gemma3n_text read keys of layers before them"),
    ],
)
def test_families_that_no_stages_fit_are_refused(tmp_path: Path, family: str, says: str) -> None:
    tiny(family).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=says):
        tiny_engine(tmp_path, pp=2)


@pytest.mark.slow
def test_a_killed_stage_ends_open_requests_and_the_group_starts_again() -> None:
    words = ["--port", "0", "--pp", "2", "--dtype", "fp32", "--kv-bytes", "32MiB"]
    with running("ridgeline.cli.main", "serve", str(LIBRARY), *words) as server:
        server.wait_until_ready()
        short = {"prompt": "def main", "max_tokens": 16, "temperature": 0}
        expected = server.post("/v1/completions", short).json()["choices"][0]["text"]
        killed = rank_of(server)
        said: queue.Queue[str] = queue.Queue()

        def ask() -> None:
            body = {**short, "max_tokens": 900, "ignore_eos": True, "stream": True}
            said.put(server.post("/v1/completions", body).text)

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: 'num_requests_running{model_name="library"} 1.0'
              in server.get("/metrics").text, "a request")  # fmt: skip
        kill_and_wait(server)
        assert f"rank 1 (process {killed}) ended with signal 9" in said.get(timeout=60)
        asking.join()
        again = server.post("/v1/completions", short).json()["choices"][0]["text"]
        assert again == expected


@pytest.mark.slow
def test_requests_that_are_withdrawn_leave_the_stages_in_step(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    with engine_of(folder) as whole:
        expected = tokens_of(whole, {"a": [5, 6, 7]})
    with engine_of(folder, pp=2) as engine:
        engine.handle(greedy("gone", list(range(5, 60)), 40))
        engine.step()
        engine.handle(Abort(id="gone"))
        engine.handle(greedy("a", [5, 6, 7], 16))
        assert answers(finished(engine))["a", 0] == expected["a", 0]
