"""What passes between the API and the engine, in either direction; msgpack when they are apart."""

from __future__ import annotations

from typing import Literal

import msgspec

from ridgeline.checkpoints.adapters import AdapterFile


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What the completion must match, token by token (compiled by xgrammar)."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "ebnf", "structural_tag"]
    text: str = ""
    """The schema or structural tag as JSON, the expression, the choices as a JSON list, or the
    grammar."""


class ThoughtBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How long a completion may think, where one token begins a thought and one ends it."""

    most: int
    """The most tokens of thoughts."""
    open: int
    close: int
    inside: bool
    """The prompt's end has begun a thought."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are picked. Defaults are OpenAI's."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    """The temperature of the distribution; 0: greedy."""
    top_k: int = 0
    """The number of most likely tokens that may come; 0: all."""
    top_p: float = 1.0
    min_p: float = 0.0
    chain: tuple[str, ...] = ()
    """The order of temperature, min_p, top_k and top_p, of those that are on; empty: the usual."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    allowed_ids: tuple[int, ...] = ()
    """The only tokens that may come; empty: all."""
    forbidden: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that the completion may not contain."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    keep_special: bool = False
    """Whether special tokens stand in the text."""
    keep_stop: bool = False
    """Whether the text ends with the stop string."""
    logprobs: int | None = None
    """How many of the most likely tokens are reported besides each chosen one."""
    prompt_logprobs: int | None = None
    beams: int = 0
    """The width of the beam search; 0: none is made."""
    length_penalty: float = 1.0
    grammar: Grammar | None = None
    thoughts: ThoughtBudget | None = None
    line_seconds: float = 0.0
    """The time behind the first token after which a completion with a line feed ends; 0: none."""


class ImageArray(msgspec.Struct, frozen=True, kw_only=True):
    """One of the arrays that a vision tower is given."""

    name: str
    """The keyword of the tower that it goes to."""
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    """The elements, row by row."""


class PromptImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image of a prompt, as the model's processor has prepared it."""

    places: tuple[tuple[int, int], ...]
    """Runs [start, stop) of the prompt's tokens that its features take the place of."""
    digest: bytes
    """A hash over all arrays."""
    arrays: tuple[ImageArray, ...]

    @property
    def num_tokens(self) -> int:
        """The tokens that stand for it."""
        return sum(stop - start for start, stop in self.places)


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A prompt and `n` completions to it."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    n: int = 1
    """Completions, each sampled by itself (seed + index) or the best `n` beams."""
    priority: int = 0
    adapter: str = ""
    cache_salt: str = ""
    """Prefixes are shared only with requests of the same salt."""
    images: tuple[PromptImage, ...] = ()
    """What the placeholders in the prompt stand for, in order."""
    handover: bool = False
    """Prefill only; the KV is fetched by another engine (`cluster/kv_transfer.py`)."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for this request any more."""

    id: str


class Embed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Mean of the last hidden states over each prompt, normalised."""

    id: str
    prompts: tuple[tuple[int, ...], ...]
    adapter: str = ""


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A command to load an adapter, replied to by `Done` or `Refused`."""

    id: str
    name: str
    path: str
    file: AdapterFile | None = None
    """What was found there; None: nobody has looked."""


class UnloadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A command replied to by `Done` or `Refused`; refused while requests use the adapter."""

    id: str
    name: str


class ForgetPrefixes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let no request that comes find what the prefix cache holds; replied to by `Done`."""

    id: str


class ExportKV(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Lay out the KV of a request that ended with `handover`; replied to by `Exported`."""

    id: str
    over: Literal["memory", "tcp"] = "memory"
    """Shared memory of one machine, or a connection from another."""
    listen: str = "127.0.0.1"
    """The address of this machine that the other one reaches, over tcp."""
    cluster_key: str = ""
    """What who fetches it over tcp has to prove; the engine's own host puts it here."""


class ReleaseKV(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nobody fetches this KV, or nobody any more; there is no reply."""

    id: str


class ImportKV(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Go on with a request that another engine has prefilled.

    Replied to like the `Submit` in it, from the token after those that came with the KV.
    """

    id: str
    """The id of the request."""
    submit: Submit
    address: str
    """Where the KV lies, from `Exported`."""
    cluster_key: str = ""
    """What to prove there; the engine's own host puts it here."""

    @property
    def n(self) -> int:
        """The number of completions: only requests with one are handed over."""
        return 1


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """The log-probability of one token of the vocabulary, after softmax of the raw logits."""

    token: int
    text: str
    logprob: float
    rank: int


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The token at one position and the most likely ones there."""

    chosen: Logprob | None
    """The token that is there; None: the prompt's first token."""
    top: tuple[Logprob, ...]


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one completion, in seconds on the engine's monotonic clock."""

    arrived: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    detokenise: float = 0.0
    """What making text of its tokens took, in all."""


class Delta(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one step added to one completion. Every token comes in exactly one Delta."""

    id: str
    index: int = 0
    """Which of the `n` completions."""
    tokens: tuple[int, ...] = ()
    text: str = ""
    """Held back while it could be the beginning of a stop string or of a character."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """What was asked of the prompt's tokens, in the first Delta of completion 0."""
    finish_reason: Literal["stop", "length", "abort", "handover"] | None = None
    """Set in the completion's last Delta."""
    stop_reason: str | int | None = None
    """The stop string or stop id that ended it."""
    prompt_tokens: int = 0
    """Tokens of the prompt; said in the last Delta, like the next four."""
    cached_tokens: int = 0
    output_tokens: int = 0
    num_preemptions: int = 0
    wasted_tokens: int = 0
    times: Times | None = None
    cumulative_logprob: float | None = None
    """The sum of the log-probabilities, for beams only."""


class Embedded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reply to `Embed`."""

    id: str
    vectors: tuple[tuple[float, ...], ...]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A command was carried out."""

    id: str


class Exported(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where the KV of a request lies until it is released."""

    id: str
    address: str
    bytes: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request cannot be served; one line that says why and what to change."""

    id: str
    message: str
    status: int = 400
    """400 bad request, 404 unknown adapter, 429 queue full, 500 it failed, 503 engine down."""
    parameter: str | None = None


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the memory ledger."""

    what: str
    """weights, graphs, activations, kv blocks, …"""
    bytes: int
    note: str = ""


class MemoryLedger(msgspec.Struct, frozen=True, kw_only=True):
    """Where the memory went when the engine started; equal to what was allocated."""

    rows: tuple[MemoryRow, ...]
    total_bytes: int
    limit_bytes: int
    """The device's memory, or what the user allowed of it."""
    num_blocks: int
    block_size: int
    bytes_per_token: int
    """KV of all layers."""
    tokens: int
    """Tokens that the cache holds, num_blocks · block_size."""
    max_length: int
    largest_concurrency: float
    """Sequences of `max_length` that fit at once."""
    ranks: int = 1
    """The processes that each hold as much (tensor parallelism)."""
    layers: str
    """How the decoder layers are computed, and why not all in one operator where they are not."""


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """State and counters of the engine, sent at least every second: it is the heartbeat too."""

    at: float
    """The engine's monotonic clock at that moment."""
    running: int
    waiting: int
    cache_usage: float
    """Share of KV blocks that sequences hold."""
    steps: int
    prompt_tokens: int
    generation_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    wasted_tokens: int
    draft_rounds: int = 0
    """Sequences' steps with drafts."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    speculating: bool = False
    adapters: tuple[str, ...] = ()
    step_seconds: float = 0.0
    """The time of all steps."""
    collective_seconds: float = 0.0
    """The time in collectives of a model cut over several ranks, waiting included."""
    collective_bytes: int = 0
    """What the first rank has put into them."""
    kv_transfers: int = 0
    """Requests whose keys and values came from another engine."""
    kv_transfer_bytes: int = 0
    kv_transfer_seconds: float = 0.0
    """The time that they were under way, summed: several travel at once."""
    step_age_seconds: float = 0.0
    """How long the step under way takes already; 0 between steps. Large: the engine hangs."""


class LinearKernel(msgspec.Struct, frozen=True, kw_only=True):
    """Whose kernel multiplies one format of weights, and why."""

    weights: str
    """The format of the weights."""
    kernel: Literal["ridgeline", "torch"]
    why: str
    """`measured`, or what left no choice."""
    provisional: bool = False
    """Whether it is measured again where weights are packed anew: the machine was busy."""
    rows: tuple[int, ...] = ()
    """Numbers of rows at which both were measured."""
    torch_over_ridgeline: tuple[float, ...] = ()
    """torch's time over Ridgeline's, at each number of rows."""

    def in_words(self) -> str:
        """The choice in one line."""
        if not self.rows:
            return f"{self.weights}: {self.kernel} ({self.why})"
        times = ", ".join(f"{ratio:.2f}×" for ratio in self.torch_over_ridgeline)
        rows = ", ".join(map(str, self.rows))
        return f"{self.weights}: {self.kernel} (torch takes {times} as long at {rows} rows)"


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine is up."""

    model: str
    ledger: MemoryLedger
    max_length: int
    vocab: int
    dtype: str = ""
    """The dtype of the computation, as torch names it."""
    kv_form: str = ""
    """How keys and values are kept, as the memory ledger says it."""
    adapters: tuple[str, ...] = ()
    kernels: tuple[LinearKernel, ...] = ()
    """Kernels of the linear layers, on a CPU."""
    slower: tuple[str, ...] = ()
    """What is computed on a slower path than there is, and why, a line each."""
    sees_images: bool = False
    """Whether prompts may have images."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine could not start, or is about to end; one line."""

    message: str
    exit_code: int = 1


ToEngine = (
    Submit
    | Abort
    | Embed
    | LoadAdapter
    | UnloadAdapter
    | ForgetPrefixes
    | ExportKV
    | ReleaseKV
    | ImportKV
)
FromEngine = Delta | Embedded | Done | Exported | Refused | Stats | Ready | Failed
