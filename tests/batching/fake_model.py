"""A model whose next token depends on every KV entry that it reads through the block tables.

The KV of a token is a hash of the token, its position, the adapter and the KV before it; the next
token is a hash of all KV of the context. So a wrong block table, a block that was overwritten, a
copy that was forgotten or a stale prefix gives other tokens than `following`, which has no blocks.
"""

from __future__ import annotations

from zlib import crc32

from ridgeline.batching.draft_tree import accepted_path, depths
from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import Sequence, Slice, Step

VOCAB = 23
STALE = 1 << 40


def entry(before: int, token: int, position: int, adapter: str) -> int:
    return hash((before, token, position, crc32(adapter.encode())))


def entries(tokens: list[int], adapter: str) -> list[int]:
    """The KV of all tokens."""
    found = [0]
    for position, token in enumerate(tokens):
        found.append(entry(found[-1], token, position, adapter))
    return found[1:]


def picked(context: int) -> int:
    """The next token, from the sum of the context's KV."""
    return hash((context, 4)) % VOCAB


def following(tokens: list[int], adapter: str = "") -> int:
    return picked(sum(entries(tokens, adapter)))


def generated(prompt: tuple[int, ...], count: int, adapter: str = "") -> list[int]:
    """The answer of the model with the prompt alone in it."""
    tokens = list(prompt)
    context, last = sum(entries(tokens, adapter)), entries(tokens, adapter)[-1]
    for position in range(len(prompt), len(prompt) + count):
        tokens.append(picked(context))
        last = entry(last, tokens[-1], position, adapter)
        context += last
    return tokens[len(prompt) :]


class FakeModel:
    """KV in blocks; checks every step that it is given."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.size = scheduler.cache.block_size
        self.store = [[STALE] * self.size for _ in range(scheduler.cache.num_blocks)]
        self.computed: dict[Sequence, int] = {}
        """Tokens computed since the last admission: each must be computed once."""
        self.num_computed = 0

    def run(self, now: float = 0.0) -> Step:
        """One step of scheduler and model."""
        step = self.scheduler.schedule(now)
        self.check(step)
        self.scheduler.complete(step, self.compute(step), now)
        return step

    def compute(self, step: Step) -> list[list[int]]:
        read = [(target, list(self.store[source])) for source, target in step.copies]
        for target, content in read:  # as `KvPool.copy`: all are read before any is written
            self.store[target] = content
        for one in step.slices:
            self._write(one)
        return [self._sample(one) if one.samples else [] for one in step.slices]

    def fill(self, sequence: Sequence) -> None:
        """Write the KV of what an adopted sequence has computed, as a handover does."""
        kv = entries(sequence.tokens, sequence.request.adapter)
        for position in range(sequence.num_computed):
            self.store[sequence.blocks[position // self.size]][position % self.size] = kv[position]
        self.computed[sequence] = sequence.num_computed

    def check(self, step: Step) -> None:
        """What holds for every step, whatever the policy."""
        limits = self.scheduler.limits
        assert step.num_tokens <= limits.max_tokens_per_step, "budget exceeded"
        sequences = [one.sequence for one in step.slices]
        assert len(set(sequences)) == len(sequences), "a sequence has two slices"
        prompts = [not one.samples or one.count > 1 for one in step.slices]
        first_prompt = prompts.index(True) if any(prompts) else len(prompts)
        assert all(len(one.drafts) == 0 for one in step.slices[first_prompt:])
        targets = [target for _, target in step.copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        for sequence in step.preempted:
            assert sequence not in sequences, "preempted and computed in one step"
            self.computed.pop(sequence, None)
        written: set[int] = set()
        for one in step.slices:
            self._check_slice(one)
            end = one.start + one.num_tokens
            blocks = one.sequence.blocks[one.start // self.size : -(-end // self.size)]
            assert not written & set(blocks), "two sequences write one block"
            written |= set(blocks)

    def _check_slice(self, one: Slice) -> None:
        sequence = one.sequence
        assert one.count >= 1
        assert one.start == sequence.num_computed
        assert one.start + one.num_tokens <= len(sequence.blocks) * self.size, "no block for it"
        assert one.start + one.count <= len(sequence.tokens)
        assert not one.drafts or one.samples, "drafts behind a hole"
        assert not sequence.drafts, "drafts were left over"
        before = self.computed.get(sequence)
        assert before is None or one.start == before, "a token is computed twice, or none is"
        self.num_computed += one.num_tokens

    def _write(self, one: Slice) -> None:
        sequence, size = one.sequence, self.size
        blocks, adapter = sequence.blocks, sequence.request.adapter
        tokens = (*sequence.tokens[one.start : one.start + one.count], *one.drafts)
        before = 0
        if one.start:
            before = self.store[blocks[(one.start - 1) // size]][(one.start - 1) % size]
        stands = depths(one.parents)
        found: list[int] = []
        for index, token in enumerate(tokens):
            place = position = one.start + index
            if one.parents and index:
                position = one.start + stands[index - 1]
                before = found[one.parents[index - 1] + 1]
            before = entry(before, token, position, adapter)
            found.append(before)
            self.store[blocks[place // size]][place % size] = before
        self.computed[sequence] = one.start + one.count

    def _sample(self, one: Slice) -> list[int]:
        """The accepted drafts and one token more."""
        if one.parents:
            return self._sample_tree(one)
        new: list[int] = []
        end = one.start + one.count
        for draft in (*one.drafts, None):
            new.append(picked(self._context(one.sequence, end)))
            if new[-1] != draft:
                break
            end += 1
        self.computed[one.sequence] = end
        return new

    def _sample_tree(self, one: Slice) -> list[int]:
        """As `_sample`, with the KV of the path moved to where a chain has it."""
        assert one.count == 1
        blocks, size, root = one.sequence.blocks, self.size, one.start
        before = self._context(one.sequence, root + 1)
        kv = [
            self.store[blocks[place // size]][place % size]
            for place in range(root + 1, root + 1 + len(one.drafts))
        ]
        contexts = [before]
        for own, parent in zip(kv, one.parents, strict=True):
            contexts.append(contexts[parent + 1] + own)
        picks = [picked(context) for context in contexts]
        path = accepted_path(one.drafts, one.parents, picks)
        for place, draft in enumerate(path, root + 1):
            self.store[blocks[place // size]][place % size] = kv[draft]
        self.computed[one.sequence] = root + 1 + len(path)
        return [picks[0], *(picks[draft + 1] for draft in path)]

    def _context(self, sequence: Sequence, length: int) -> int:
        full, rest = divmod(length, self.size)
        total = sum(sum(self.store[block]) for block in sequence.blocks[:full])
        return total + sum(self.store[sequence.blocks[full]][:rest]) if rest else total
