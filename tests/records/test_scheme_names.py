"""Names of compressions say what they say, and nothing unknown passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.records.scheme import Pruning
from ridgeline.records.scheme_names import offered, parse

PAGE = Path(__file__).parents[2] / "docs/reference/schemes.md"


def test_a_name_is_read_part_by_part() -> None:
    scheme = parse("w4a16-gptq-g64-asym-mse-actorder-kvfp8")
    assert scheme.weights is not None
    assert (scheme.weights.bits, scheme.weights.group, scheme.weights.share) == (4, 64, "group")
    assert (scheme.weights.symmetric, scheme.weights.observer) == (False, "mse")
    assert (scheme.method, scheme.act_order) == ("gptq", True)
    assert scheme.activations is None
    assert scheme.kv is not None
    assert scheme.kv.kind == "fp8_e4m3"
    assert scheme.needs_calibration


def test_gptq_chooses_ranges_by_their_errors_unless_told_otherwise() -> None:
    forms = [parse(name).weights for name in ("w4a16-gptq", "w4a16-gptq-minmax", "w4a16")]
    assert [form and form.observer for form in forms] == ["mse", "minmax", "minmax"]


def test_parts_come_in_any_order_and_case() -> None:
    one, other = parse("w8a8-smoothquant-static"), parse("STATIC-smoothquant-W8A8")
    assert (one.weights, one.activations, one.method) == (
        other.weights,
        other.activations,
        other.method,
    )
    assert one.activations is not None
    assert (one.activations.share, one.activations.dynamic) == ("tensor", False)


def test_prunings_are_read() -> None:
    assert parse("2:4-sparsegpt").pruning == Pruning(
        criterion="sparsegpt", share=0.5, pattern=(2, 4)
    )
    assert parse("12.5%-heads-taylor").pruning == Pruning(
        structure="heads", criterion="taylor", share=0.125
    )
    assert parse("30%-global").pruning == Pruning(criterion="magnitude", share=0.3, scope="global")
    assert parse("heads-0.1+2.10").pruning == Pruning(
        structure="heads", criterion="magnitude", share=0.0, listed=((0, 1), (2, 10))
    )
    assert not parse("heads-0.1").needs_calibration
    assert not parse("50%").needs_calibration
    assert not parse("50%-random").needs_calibration
    assert parse("50%-32x1-wanda").pruning == Pruning(criterion="wanda", share=0.5, block=(32, 1))


def test_schemes_for_images_are_read() -> None:
    scheme = parse("w4a8-int8-cle-biascorr-adaround-entropy-sym")
    assert scheme.weights is not None
    assert scheme.activations is not None
    assert (scheme.weights.bits, scheme.weights.share, scheme.weights.group) == (4, "channel", None)
    assert (scheme.activations.share, scheme.activations.symmetric) == ("tensor", True)
    assert (scheme.activations.observer, scheme.method) == ("entropy", "adaround")
    assert (scheme.images, scheme.equalise, scheme.correct_bias) == (True, True, True)
    assert parse("w8a8-int8").method == "gptq"
    assert parse("w8a8-int8-rtn").method == "rtn"


@pytest.mark.parametrize("kind", ["numbers", "cache"])
def test_every_offered_name_parses(kind: str) -> None:
    for name, _ in offered()[kind]:
        assert parse(name).name == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("0.1-neurons", "lists 0.1, layer and head of each, which goes with heads alone"),
        ("heads-0.1+0.1", "lists head 0.1 twice"),
        ("w4a17", "unknown part 'w4a17'; did you mean w4a16"),
        ("w4a16-gptk", "unknown part 'gptk'; did you mean gptq"),
        ("w4a16-qqqqq", "unknown part 'qqqqq'; known: w2a16"),
        ("channels-30", "unknown part '30'; did you mean 30%, g30"),
        ("", "does not say to what"),
        ("gptq", "does not say to what"),
        ("int8", "of networks for images w8a8-int8 or w4a8-int8, of language models w8a8"),
        ("int8-entropy", "of networks for images w8a8-int8"),
        ("static", "of networks for images w8a8-int8"),
        ("int4", "unknown part 'int4'; say first what is rounded to how many bits"),
        ("fp16", "16 bits are no scheme"),
        ("qat", "`ridgeline train`"),
        ("channels", "does not say how many; give their share, as in 50%-channels"),
        ("w8a8-dynamic", "dynamic, which goes with int8, of networks for images"),
        ("w4a16-w8a8", "says both w4a16 and w8a8"),
        ("w4a16-rtn-gptq", "says both rtn and gptq"),
        ("w4a16-gptq-gptq", "says the same twice"),
        ("w4a16-g32-g64", "says both g32 and g64"),
        ("w4a16-g32-channel", "more than once which weights share a scale"),
        ("w4a16-g0", "groups of no weights"),
        ("w4a16-mse-minmax", "says both minmax and mse"),
        ("mxfp4-g64", "says g64, but its blocks are of a size"),
        ("nvfp4-channel", "says channel, but its blocks are of a size"),
        ("fp8-asym", "floats have no zero points"),
        ("w4a16-roundup", "only mxfp4 and mxfp8 have"),
        ("w4a16-actorder", "which only gptq has"),
        ("w4a16-smoothquant", "needs activations to be rounded too"),
        ("mxfp4-static", "blocks find their scales as they come"),
        ("w4a16-static", "says static, which does not go with the rest"),
        ("w4a16-wanda", "says wanda, which does not go with the rest"),
        ("kvfp8-gptq", "says gptq, which does not go with the rest"),
        ("2:4-w4a16", "give two schemes, one after the other"),
        ("2:4-heads", "holds for single weights"),
        ("2:4-16x16", "blocks of weights, which go by a share of each layer"),
        ("50%-16x16-heads", "blocks of weights, which go by a share of each layer"),
        ("50%-16x16-sparsegpt", "repairs single weights"),
        ("50%-0x16", "blocks of no weights"),
        ("w4a16-16x16", "says 16x16, which does not go with the rest"),
        ("4:2", "keeps 4 of 2"),
        ("w4a16-int8", "goes with w8a8 and w4a8"),
        ("w8a8-int8-awq", "says awq, which is for language models"),
        ("w8a8-int8-mse-entropy", "says both mse and entropy"),
        ("w8a8-int8-mse-dynamic", "whose ranges come with each batch"),
        ("w8a8-int8-adaround-gptq", "says both gptq and adaround"),
        ("w8a8-cle", "says cle, which goes with int8, of networks for images"),
        ("100%", "more than 0 % and less than 100 %"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(name: str, why: str) -> None:
    with pytest.raises(InputError) as refusal:
        parse(name)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


@given(st.text(alphabet="wagkvfp0123456789:%-gptqxyz", max_size=24))
def test_any_text_is_a_scheme_or_one_line(text: str) -> None:
    try:
        parse(text)
    except InputError as refusal:
        line = str(refusal)
    else:
        line = ""
    assert "\n" not in line


def test_the_page_lists_every_part_as_the_table_has_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for rows in offered().values():
        for name, meaning in rows:
            assert f"| `{name}` | {meaning} |" in page, name
