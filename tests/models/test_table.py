"""Models out of rows of published tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.models import parameter_count, preset, read_table_model, spec_from_table

SIZES = {"layers": "16", "hidden": "2048", "ffn": "8192", "heads": "32", "vocab": "131072"}


def published_rows() -> list[dict[str, str]]:
    for root in Path(__file__).resolve().parents:
        file = root / "shared" / "data" / "published_training.csv"
        if file.is_file():
            with file.open(newline="") as lines:
                return list(csv.DictReader(lines))
    pytest.skip("the published tables are not here")


def test_every_published_size_is_met_within_its_rounding() -> None:
    rows = published_rows()
    given = [row for row in rows if row["params_b"]]
    met = [row for row in given if read_table_model(row).matches]
    assert len(met) / len(given) == 1.0
    assert len(given) > 400


def test_published_names_lead_to_the_architectures_that_columns_cannot_say() -> None:
    latent = [row for row in published_rows() if "arch: MLA" in row["note"]]
    assert latent
    assert all(spec_from_table(row).latent is not None for row in latent)


def test_a_preset_with_the_row_s_sizes_is_the_model_with_the_row_s_vocabulary() -> None:
    row = {"model": "GPT3-175B", "layers": "96", "hidden": "12288", "ffn": "49152"}
    found = read_table_model({**row, "heads": "96", "vocab": "51200", "params_b": "175"})
    assert found.spec.family == "gpt2"
    assert found.spec.vocab == 51200
    assert found.matches
    assert not found.assumed


@pytest.mark.parametrize(("vocab", "window"), [("32000", 4096), ("32768", 0), ("32128", 4096)])
def test_the_vocabulary_tells_revisions_of_one_name_apart(vocab: str, window: int) -> None:
    sizes = {"layers": "32", "hidden": "4096", "heads": "32", "vocab": vocab}
    assert spec_from_table({"model": "Mistral-7B", **sizes}).sliding_window == window
    assert spec_from_table({"model": "Mistral-7B-v0.1", **sizes}).sliding_window == 4096


def test_a_preset_with_other_sizes_is_not_the_model() -> None:
    row = {"model": "Llama-3-8B", **SIZES, "params_b": "1.34"}
    assert spec_from_table(row).family == "generic"


@pytest.mark.parametrize(
    ("params", "gated", "tied"),
    [("0.81", False, None), ("1.61", True, False), ("1.07", False, True)],
)
def test_the_parameter_count_decides(params: str, gated: bool, tied: bool | None) -> None:
    # 0.27 in the vocabulary, 0.27 in attention, 0.27 in each of two or three projections
    found = read_table_model({"model": "x", **SIZES, "params_b": params})
    if tied is None:
        assert found.matches is False
    else:
        assert found.matches
        assert found.spec.tied_embeddings is tied
        assert found.spec.gated_mlp is gated


@pytest.mark.parametrize(
    ("note", "gated"),
    [("SwiGLU, MHA; tied embeddings below 4B", True), ("flash attention, GELU MLP", False)],
)
def test_words_decide_between_shapes_of_one_size(note: str, gated: bool) -> None:
    # Two projections and an untied head count what three and a tied one do.
    row = {"model": "x", **SIZES, "params_b": "1.34", "note": note}
    found = read_table_model(row)
    assert found.matches
    assert found.spec.gated_mlp is gated


def test_without_a_size_the_lineage_follows_the_width() -> None:
    four = spec_from_table({"model": "x", **SIZES, "seq": "2048"})
    assert (four.gated_mlp, four.tied_embeddings, four.mlp_bias) == (False, True, True)
    assert four.learned_positions
    other = spec_from_table({"model": "x", **SIZES, "ffn": "5632"})
    assert (other.gated_mlp, other.tied_embeddings, other.mlp_bias) == (True, False, False)


def test_a_mixture_is_gated_and_untied_and_takes_its_width_from_the_note() -> None:
    note = "arch: head_dim 128; moe_ffn=768; 1 dense + 15 MoE layers; 2 shared experts"
    row = {"model": "x", **SIZES, "experts": "64", "topk": "6", "note": note}
    spec = spec_from_table(row)
    assert spec.experts is not None
    assert (spec.gated_mlp, spec.tied_embeddings, spec.head_dim) == (True, False, 128)
    assert (spec.experts.ffn, spec.experts.shared_ffn, spec.experts.dense_layers) == (768, 1536, 1)


def test_a_preset_s_mixture_stays_even_when_the_printed_size_is_another_s() -> None:
    row = {"model": "DeepSeek-V3", "layers": "61", "hidden": "7168", "params_b": "685"}
    found = read_table_model(row)
    assert found.spec.latent is not None
    assert found.matches is False


@pytest.mark.parametrize(("params", "q_rank"), [("15.96", 0), ("16.003", 1536)])
def test_latent_attention_without_a_preset_has_deepseek_s_widths(params: str, q_rank: int) -> None:
    note = "arch: MLA; moe_ffn=1408; 1 dense + 26 MoE layers; 2 shared experts"
    row = {"model": "x", "layers": "27", "hidden": "2048", "ffn": "11264", "heads": "16"}
    row |= {"vocab": "163840", "experts": "64", "topk": "6", "params_b": params, "note": note}
    found = read_table_model(row)
    assert found.matches
    assert found.spec.latent is not None
    assert found.spec.latent.q_rank == q_rank
    assert "latent attention with DeepSeek's widths" in found.assumed


def test_a_size_that_is_cut_off_instead_of_rounded_is_met() -> None:
    row = {"model": "y", "layers": "24", "hidden": "1024", "heads": "16", "vocab": "50257"}
    count = parameter_count(spec_from_table({**row, "params_b": "0.353"}))
    assert 0.3530e9 <= count < 0.3540e9


def test_blank_heads_are_those_nearest_to_a_width_of_128() -> None:
    found = read_table_model({"model": "x", **SIZES, "hidden": "14400", "heads": ""})
    assert found.spec.heads == 120
    assert "120 heads, of width 120" in found.assumed


def test_a_bare_preset_name_is_enough() -> None:
    assert spec_from_table({"model": "Llama2-70B"}) == preset("Llama-2-70B")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": ""}, "x: layers is blank and no preset has this name"),
        ({"hidden": "big"}, "x: hidden is 'big'; it must be a whole number of 1 or more"),
        ({"heads": "0"}, "x: heads is '0'; it must be"),
        ({"heads": "7"}, "x: 7 heads do not divide the hidden size 2048"),
        ({"kv_heads": "5"}, "x: 5 kv_heads do not divide 32 heads"),
        ({"params_b": "many"}, "x: params_b is 'many'; it must be a number of billions"),
        ({"params_b": "0"}, "x: params_b is '0'; it must be a number of billions"),
        ({"params_b": "nan"}, "x: params_b is 'nan'; it must be a number of billions"),
        ({"vocab": "inf"}, "x: vocab is 'inf'; it must be a whole number"),
        ({"layers": "1.5"}, "x: layers is '1.5'; it must be a whole number"),
        ({"experts": "8"}, "x: topk is blank"),
        ({"experts": "8", "topk": "9"}, "x: topk is 9; there are only 8 experts"),
    ],
)
def test_a_row_that_cannot_be_a_model_says_which_cell(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        spec_from_table({"model": "x", **SIZES, **change})
    assert message in str(caught.value)
