"""Which causal families of the installed transformers are served, compressed, planned, or why not.

    python -m bench.model_families [FAMILY ...] [--write]

Each family is made tiny with random weights in float32, saved, and asked for as a user would:
`serve` loads it, which checks its logits over blocks against the model's own, `compress` rounds it
by GPTQ to 4 bits and what it saves is read back, and `predict serving` and `plan serving` read its
configuration. `--write` puts the answers on docs/results/families.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers
from bench.tiny_families import sizes_of, tiny
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ridgeline.compress.evaluate.loaded import load as load_evaluated
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.compress.saved.unread import is_read_here_alone
from ridgeline.errors import RidgelineError, in_words
from ridgeline.models import load_model
from ridgeline.plan.serving.estimate import estimate_serving
from ridgeline.plan.serving.plan import ServingTask, plan_serving
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import replica_of
from ridgeline.records.scheme_names import parse
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model.load import load

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "families.md"
VOCAB = sizes_of("llama")["vocab_size"]
SCHEME = "w4a16-gptq-g4"
"""Groups that divide the sizes of all tiny models."""
SAME = 1e-4
"""Of the largest logit."""
SHOWN = 150
HERE_ALONE = "yes, but transformers does not read it"
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What became of one family; an empty string is a yes."""

    family: str
    served: str
    how: str
    """How its layers are computed, where it is served."""
    compressed: str
    predicted: str
    planned: str


def families() -> list[str]:
    """The model types of all causal language models that transformers has."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def ask(family: str) -> Answers:
    """Ask for one family."""
    try:
        config = AutoConfig.for_model(family)
        if config.is_encoder_decoder:
            return _everywhere(family, "has an encoder")
        if config.get_text_config(decoder=True) is not config:
            return _everywhere(family, "sees or hears besides; asked for as a text model alone")
        model = tiny(family)
    except Exception as error:  # any family's code runs here
        return _everywhere(family, f"not asked: no tiny model could be made ({in_words(error)})")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / family
        try:
            model.save_pretrained(folder)
        except Exception as error:  # here too
            return _everywhere(family, f"not asked: it cannot be saved ({in_words(error)})")
        del model
        served, how = _served(folder)
        compressed = _compressed(folder, is_served=not served)
        try:
            AutoConfig.for_model(family, **sizes_of(family, "planned")).save_pretrained(folder)
        except Exception as error:  # and here
            why = f"not asked: no larger configuration could be made ({in_words(error)})"
            return Answers(family, served, how, compressed, why, why)
        predicted, planned = _predicted(folder), _planned(folder)
        return Answers(family, served, how, compressed, predicted, planned)


def _everywhere(family: str, why: str) -> Answers:
    return Answers(family, why, "", why, why, why)


def _served(folder: Path) -> tuple[str, str]:
    config = EngineConfig(model=str(folder), dtype="fp32", device="cpu")
    try:
        loaded = load(config)
    except RidgelineError as error:
        return str(error), ""
    return "", loaded.layer_path


def _compressed(folder: Path, *, is_served: bool) -> str:
    """Whether transformers, and the server where it serves the family, read what was measured."""
    tokens = torch.randint(3, VOCAB, (16, 32), generator=torch.Generator().manual_seed(0))
    work, out = folder.with_suffix(".work"), folder.with_suffix(".out")
    job = CompressionJob(model=folder, schemes=(parse(SCHEME),), tokens=tokens, work=work)
    try:
        staged = stage(job)
        measured = staged.emulated()
        with torch.no_grad():
            expected = measured(tokens[:2]).logits
        staged.save(out)
    except RidgelineError as error:
        return str(error)
    except Exception as error:  # any family's code runs here
        return f"its own code does not run so ({in_words(error)})"
    if is_served and (why := _served(out)[0]):
        return f"not served once compressed: {why}"
    alone = is_read_here_alone(out)
    try:
        read = (
            load_evaluated("MODEL", out, "cpu").model
            if alone
            else AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        )
        with torch.no_grad():
            found = read(tokens[:2]).logits
    except Exception as error:  # transformers' reader runs here
        return (
            f"{'only served: ' if is_served else ''}transformers cannot read it ({in_words(error)})"
        )
    off = float((found - expected).abs().max() / expected.abs().max())
    if off >= SAME:
        return f"{'evaluate' if alone else 'transformers'} reads other numbers, off by {off:.2g}"
    return HERE_ALONE if alone else ""


def _predicted(folder: Path) -> str:
    try:
        replica = replica_of(
            load_model(folder), "H100", tp=8, weights="bf16", prompt=64, completion=16
        )
        estimate_serving(replica, ServedLoad(kind="closed", number=4.0))
    except RidgelineError as error:
        return str(error)
    return ""


def _planned(folder: Path) -> str:
    try:
        plan_serving(
            ServingTask(
                model=load_model(folder), prompt=64, completion=16, users=4.0, gpus=("H100",)
            )
        )
    except RidgelineError as error:
        return str(error)
    return ""


def shown(why: str, family: str) -> str:
    """A reason for the table: without folders and what every refusal ends with."""
    if not why:
        return "yes"
    words = re.sub(r"\S*/(\w+\.json)", r"\1", why).removeprefix("config.json: ")
    words = re.sub(r"^/\S+: ", "", words)
    words = re.split(r"; did you mean |; known: ", words)[0]
    words = words.removeprefix(f"models of the family {family} cannot be served over a paged KV ")
    words = words.removeprefix("cache: ").partition("; docs/how-to")[0]
    words = re.sub(r"\d\.\d+(e-\d+)?(?= of the spread)", "more than a thousandth", words)
    words = in_words(ValueError(words)).replace("|", "/")
    return words if len(words) <= SHOWN else words[: SHOWN - 2].rstrip() + " …"


def page(answers: list[Answers]) -> str:
    """The whole page."""
    count = {
        what: sum(getattr(one, what) in ("", HERE_ALONE) for one in answers)
        for what in ("served", "compressed", "predicted", "planned")
    }
    asked = [one for one in answers if not one.served.startswith("not asked")]
    rows = []
    for one in answers:
        served, compressed, predicted, planned = (
            shown(why, one.family)
            for why in (one.served, one.compressed, one.predicted, one.planned)
        )
        planned = planned if planned != predicted else "〃"
        cells = (one.family, served, one.how, compressed, predicted, planned)
        rows.append("| " + " | ".join(cells) + " |")
    versions = f"transformers {transformers.__version__} and torch {torch.__version__}"
    head = f"""# Families of models

Written by `python -m bench.model_families --write` on {datetime.now(tz=UTC).date()} with
{versions}: of its {len(answers)} causal families {count["served"]} are served,
{count["compressed"]} compressed, {count["predicted"]} read by `predict serving` and
{count["planned"]} by `plan serving`.
{len(asked)} could be asked, each by a tiny model with random weights, in float32 on a CPU (by the
sizes in `bench/tiny_families.toml`); their configurations were planned at some 8 billion
parameters. Served means that `ridgeline serve` loads it, and that its logits over blocks, in chunks
and packed with another prompt, are its own. Compressed means that `ridgeline compress` rounds it
(`{SCHEME}`), that transformers computes with what is saved as was measured, and that the server
reads it, too, where it serves the family; or, where it stands so, that `ridgeline evaluate` reads
it in transformers' place, which has no form for it. No trained weights were at hand.

| family | served | its layers | compressed | predict serving | plan serving |
|---|---|---|---|---|---|
"""
    return head + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", nargs="*", help="default: all")
    parser.add_argument("--write", action="store_true", help="write the page (of all families)")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    answers = []
    for family in options.family or families():
        quiet = io.StringIO()
        with contextlib.redirect_stderr(quiet):
            answers.append(ask(family))
        one = answers[-1]
        print(family, "|", one.served or f"served, {one.how}", "|", one.compressed or "compressed",
              "|", one.predicted or "predicted", "|", one.planned or "planned",
              flush=True)  # fmt: skip
    if options.write:
        if options.family:
            sys.exit("--write takes all families")
        unfinished = PAGE.with_suffix(".part")
        unfinished.write_text(page(answers))
        unfinished.replace(PAGE)


if __name__ == "__main__":
    main()
