"""What engines and kernels make of the hardware: few numbers, each with a meaning.

The shipped values and where they come from stand in `plan/serving/calibration.toml` and
`priors.toml` there; this file only says what they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.cost.arrays import Cases, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Cases):
    """What engines and kernels make of the hardware; `plan/serving/priors.toml` has the sources."""

    pace: Floats
    """Time of this system's steps over what all the others say: its clocks, host and build. No
    published run moves it, only a load point of the user's own."""
    gemm: Floats
    """Share of the peak that linear layers sustain over a full step."""
    expert_gemm: Floats
    """Rate of the grouped matmuls of routed experts over that, with many tokens for each expert."""
    expert_tokens: Floats
    """Tokens of an expert at which its matmuls run at half that rate."""
    expert_depth: Floats
    """Bytes of a row of an expert's second matmul, on one device, at which it runs at half."""
    expert_memory: Floats
    """Rate of reading routed experts' weights over that of the others."""
    evenness: Floats
    """The shape of the gamma distribution of experts' popularity; infinite: all alike."""
    passes: Floats
    """Times that a layer writes or reads its activations outside of matmuls: norms, quantising,
    and of routed layers sorting tokens by experts and adding up what these return."""
    attention: Floats
    """Share of the 16-bit peak that a prompt's attention sustains."""
    scan: Floats
    """The same of scans in chunks by layers with a state."""
    memory: Floats
    """Share of the bandwidth at which weights are read."""
    tiled: Floats
    """Rate of reading weights for more tokens than a matrix times vector kernel takes, over that of
    one."""
    last_wave: Floats
    """Share of a tile's time that compute units wait in each matmul, at the peak of its dtype."""
    unpack: Floats
    """Rate of reading weights that must be widened first, over that."""
    widened_gemm: Floats
    """Rate of the linear layers' matmuls with weights that must be widened first, over `gemm`."""
    cache: Floats
    """Share of the bandwidth at which decodes read the cache."""
    link: Floats
    """Share of the link that an all-reduce of very many bytes sustains."""
    reduce_seconds: Floats
    """Time of an all-reduce of next to nothing between two devices; grows with the logarithm."""
    bulk_seconds: Floats
    """What a collective library's pipeline takes to fill, which such an all-reduce waits for."""
    copy_bytes_per_second: Floats
    """What a kernel that fetches from its peers at once moves on a device of endless links: few of
    its compute units work, so that small messages alone are faster with it."""
    layer_seconds: Floats
    """Per layer and step: starting and draining its kernels."""
    routing_seconds: Floats
    """The same for choosing, sorting and joining experts."""
    eager_seconds: Floats
    """Host time per layer of engines that launch every kernel; 0 with captured graphs."""
    captured_context: Floats
    """Tokens of context up to which a step of decodes alone replays a captured graph, where the
    engine captures any; longer ones are launched kernel by kernel."""
    prompt_seconds: Floats
    """Host time per layer of a step that carries prompts: its shapes vary, so that few engines
    capture it."""
    prompt_routing_seconds: Floats
    """The same on top of it per layer of routed experts."""
    step_seconds: Floats
    """Host time per step that nothing hides: scheduling, sampling."""
    group_seconds: Floats
    """The same for reaching every rank of a tensor-parallel group."""
    sequence_seconds: Floats
    """The same per sequence that is sampled."""
    request_seconds: Floats
    """Once per request, before its prompt runs: transport, tokenising, admission."""
    receive_steps: Floats
    """Decode steps between two looks at what has arrived: engines may look at every step, or let
    some pass to spare their host."""
    stream_seconds: Floats
    """Front end's time for one token of an answer: detokenising, packing, sending. It works beside
    the device, one token after another, and bounds the tokens per second of a whole server."""
    handover_seconds: Floats
    """Once per request of a disaggregated server: the second engine's admission and first step."""
    start: Floats
    """The share of a closed loop's requests that are sent when all clients start at once."""
    occupancy: Floats
    """Sequences that run at saturation over those that memory could hold as engines count."""
    workspace_bytes: Floats
    """Memory of each device that activations, captured graphs and communicators take."""
    reserve: Floats
    """Share of the memory that weights and cache may fill."""
