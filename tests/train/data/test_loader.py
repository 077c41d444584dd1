"""Samples and batches: nothing lost, nothing seen twice, the same for every world size."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.data.corpus import END, place, recipe, stream, with_data

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe
from ridgeline.train.batch import IGNORED, Batch
from ridgeline.train.data.loader import Loader, validation_batches
from ridgeline.train.data.preparation import PreparedData
from ridgeline.train.data.sequences import Sequences, SequenceWindows
from ridgeline.train.data.shards import TokenStream

QUICK = settings(deadline=None, max_examples=25)

CORPORA = st.lists(st.lists(st.integers(2, 400), max_size=30), min_size=1, max_size=20)


@contextmanager
def corpus(documents: list[list[int]], shard_tokens: int = 10**9) -> Iterator[TokenStream]:
    with tempfile.TemporaryDirectory() as name:
        yield stream(Path(name), documents, shard_tokens)


def prepared(*sources: TokenStream, held: TokenStream | None = None) -> PreparedData:
    return PreparedData(
        sources=sources,
        weights=(1.0,) * len(sources),
        validation=held,
        tokenizer=Path(),
        vocabulary=500,
        end_of_document=END,
        identity="a corpus",
    )


def filled(sequences: Sequences, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    windows = sequences.windows(np.array([number]))
    inputs, labels, positions = windows.rows()
    assert inputs.shape == labels.shape == positions.shape == (1, sequences.seq)
    assert windows.num_targets == (labels != IGNORED).sum()
    return inputs[0], labels[0], positions[0]


def flat(documents: list[list[int]]) -> list[int]:
    return [token for document in documents for token in [*document, END]]


@QUICK
@given(documents=CORPORA, seq=st.integers(1, 17), shard_tokens=st.integers(5, 90))
def test_packed_each_token_is_a_target_exactly_once(
    documents: list[list[int]], seq: int, shard_tokens: int
) -> None:
    whole = flat(documents)
    with corpus(documents, shard_tokens) as found:
        assert found.num_tokens == len(whole)
        assert list(found.read(0, len(whole))) == whole
        if len(whole) < 2:
            return
        sequences = Sequences.of(found, recipe(seq=seq).data, END)
        rows = [filled(sequences, i) for i in range(len(sequences))]
    labels = np.concatenate([row[1] for row in rows])
    inputs = np.concatenate([row[0] for row in rows])
    assert labels[labels != IGNORED].tolist() == whole[1:]
    assert inputs[labels != IGNORED].tolist() == whole[:-1]


@QUICK
@given(documents=CORPORA, seq=st.integers(1, 17), shard_tokens=st.integers(5, 90))
def test_masked_no_label_and_no_position_reaches_over_a_document(
    documents: list[list[int]], seq: int, shard_tokens: int
) -> None:
    whole = flat(documents)
    owner = np.repeat(np.arange(len(documents)), [len(d) + 1 for d in documents])
    if len(whole) < 2:
        return
    with corpus(documents, shard_tokens) as found:
        data = recipe(seq=seq, document_mask=True).data
        sequences = Sequences.of(found, data, END)
        seen = 0
        for number in range(len(sequences)):
            inputs, labels, positions = filled(sequences, number)
            start = number * seq
            for s in range(min(seq, len(whole) - start)):
                at = start + s
                begins = s == 0 or owner[at] != owner[at - 1]
                assert positions[s] == (0 if begins else positions[s - 1] + 1)
                inside = at + 1 < len(whole) and owner[at + 1] == owner[at]
                assert labels[s] == (whole[at + 1] if inside else IGNORED)
                assert inputs[s] == whole[at]
                seen += inside
    assert seen == sum(len(document) for document in documents)


@QUICK
@given(documents=CORPORA, seq=st.integers(1, 17), shard_tokens=st.integers(5, 90))
def test_padded_each_sequence_is_the_head_of_its_document(
    documents: list[list[int]], seq: int, shard_tokens: int
) -> None:
    with corpus(documents, shard_tokens) as found:
        sequences = Sequences.of(found, recipe(seq=seq, packing="padded").data, END)
        assert len(sequences) == len(documents)
        for number, document in enumerate(documents):
            whole = [*document, END]
            inputs, labels, positions = filled(sequences, number)
            targets = whole[1 : seq + 1]
            assert labels[labels != IGNORED].tolist() == targets
            assert inputs[: min(seq, len(whole))].tolist() == whole[:seq]
            assert (labels[len(targets) :] == IGNORED).all()
            assert positions.tolist() == list(range(seq))


@QUICK
@given(
    documents=CORPORA,
    seq=st.integers(1, 17),
    shard_tokens=st.integers(5, 90),
    packing=st.sampled_from(["packed", "padded"]),
    masked=st.booleans(),
    data=st.data(),
)
def test_samples_read_together_are_those_read_one_by_one(
    documents: list[list[int]], seq: int, shard_tokens: int, packing: str, masked: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    with corpus([*documents, [7]], shard_tokens) as one, corpus([[3, 4], [5]]) as two:
        options = recipe(seq=seq, packing=packing, document_mask=masked).data
        sources = [Sequences.of(found, options, END) for found in (one, two)]
        drawn = data.draw(
            st.lists(st.tuples(st.integers(0, 1), st.integers(0, 10**6)), min_size=1, max_size=12)
        )
        chosen = np.array([(s, number % len(sources[s])) for s, number in drawn])
        alone = [filled(sources[s], number) for s, number in chosen]
        here = [(s, np.flatnonzero(chosen[:, 0] == s)) for s in range(2)]
        parts = [(rows, sources[s].windows(chosen[rows, 1])) for s, rows in here if len(rows)]
        together = SequenceWindows.merged(parts)
    assert np.array_equal(together.rows(), np.stack(alone, axis=1))
    assert together.num_targets == sum(int((labels != IGNORED).sum()) for _, labels, _ in alone)


def run_of(ready: PreparedData, wanted: Recipe, steps: int, done: dict | None = None) -> tuple:
    """The global batches of some steps, put together from all data ranks; the state after."""
    loaders = [
        Loader(ready, wanted, place(wanted.layout, index)) for index in range(wanted.layout.dp)
    ]
    if done:
        for loader in loaders:
            loader.load_state_dict(done)
    found = []
    for _ in range(steps):
        parts: list[Batch] = [batch for loader in loaders for batch in next(loader)]
        assert {len(batch.input_ids) for batch in parts} == {wanted.layout.micro_batch}
        assert len(parts) == wanted.layout.dp * wanted.layout.num_microbatches
        found.append(
            torch.stack(
                [
                    torch.cat([getattr(b, k) for b in parts])
                    for k in ("input_ids", "labels", "position_ids")
                ]
            )
        )
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    return torch.stack(found), states[0]


@QUICK
@given(
    split=st.integers(1, 6),
    layouts=st.lists(
        st.sampled_from([(1, 12), (2, 3), (3, 2), (4, 1), (6, 2), (12, 1)]), min_size=2, max_size=2
    ),
    seed=st.integers(0, 99),
    masked=st.booleans(),
)
def test_a_resumed_run_reads_what_an_uninterrupted_one_reads_on_any_number_of_ranks(
    split: int, layouts: list[tuple[int, int]], seed: int, masked: bool
) -> None:
    before, after = (Layout(dp=dp, micro_batch=mb, global_batch=12) for dp, mb in layouts)
    rng = np.random.default_rng(0)
    documents = [rng.integers(2, 400, rng.integers(1, 60)).tolist() for _ in range(40)]
    with corpus(documents) as one, corpus(documents[:7], 50) as two:
        ready = prepared(one, two)
        options = {"seed": seed, "document_mask": masked}
        whole, end = run_of(ready, recipe(Layout(micro_batch=12, global_batch=12), **options), 7)
        first, state = run_of(ready, recipe(before, **options), split)
        second, last = run_of(ready, recipe(after, **options), 7 - split, state)
    assert torch.equal(whole, torch.cat([first, second]))
    assert last == end == {"samples": 84, "identity": end["identity"]}


def test_what_was_read_ahead_is_not_in_the_state() -> None:
    with corpus([list(range(2, 300))]) as found:
        layout = Layout(micro_batch=2, global_batch=4)
        ahead = Loader(prepared(found), recipe(layout, workers=1), place(layout))
        here = Loader(prepared(found), recipe(layout), place(layout))
        for _ in range(3):
            assert torch.equal(next(ahead)[1].labels, next(here)[1].labels)
        assert ahead.state_dict()["samples"] == 12
        here.load_state_dict(ahead.state_dict())
        assert torch.equal(next(ahead)[0].input_ids, next(here)[0].input_ids)
        ahead.close()


def test_a_state_of_other_data_is_refused() -> None:
    with corpus([list(range(2, 300))]) as found:
        layout = Layout()
        state = Loader(prepared(found), recipe(layout, seed=1), place(layout)).state_dict()
        other = Loader(prepared(found), recipe(layout, seed=2), place(layout))
        with pytest.raises(InputError, match="trained on other data"):
            other.load_state_dict(state)


@QUICK
@given(count=st.integers(1, 20), dp=st.integers(1, 4), micro_batch=st.integers(1, 3))
def test_validation_is_read_once_in_equally_many_batches_on_every_rank(
    count: int, dp: int, micro_batch: int
) -> None:
    documents = [[number + 2, 100] for number in range(count)]
    layout = Layout(dp=dp, micro_batch=micro_batch, global_batch=dp * micro_batch)
    wanted = with_data(recipe(layout), packing="padded")
    with corpus(documents) as found:
        ready = prepared(found, held=found)
        shares = [list(validation_batches(ready, wanted, place(layout, i))) for i in range(dp)]
    assert len({len(share) for share in shares}) == 1
    seen: Counter[int] = Counter()
    for batch in (batch for share in shares for batch in share):
        assert batch.input_ids.shape == (micro_batch, 8)
        for inputs, labels in zip(batch.input_ids, batch.labels, strict=True):
            seen[int(inputs[0])] += int((labels != IGNORED).sum())
    assert {key: value for key, value in seen.items() if value} == {n + 2: 2 for n in range(count)}
