"""Every name of another library that is replaced, or private and relied upon, with the reason.

Nothing else in Ridgeline assigns to another library's modules and classes (settings that it offers
for that aside), and no private name is read that does not stand here: `tests/test_patches.py` holds
the source to both, and resolves each name in the libraries that are installed; `constraints.txt`
says which releases those are. So a new release is met by one test, and one page says what it may
not change.

Names are written as entry points are: `module:attribute.of.it`.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

Undo = Callable[[], None]

COLLECTIVES: Final = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor",
    "broadcast", "reduce", "gather", "scatter", "all_to_all", "all_to_all_single", "barrier",
    "send", "recv", "all_gather_object", "gather_object", "broadcast_object_list",
    "scatter_object_list",
)  # fmt: skip
"""The blocking collectives that scripts call themselves."""

LATER_COLLECTIVES: Final = ("all_gather_single", "reduce_scatter_single")
"""More of them, from torch 2.13 on."""

LIBDEVICE: Final = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign",
    "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fast_cosf", "fast_expf",
    "fast_sinf", "fast_tanhf", "fdim", "floor", "fma", "fmod", "hypot", "ldexp", "lgamma", "log",
    "log10", "log1p", "log2", "nearbyint", "pow", "rint", "round", "rsqrt", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip
"""The functions of Triton's libdevice that torch has as well."""
LIBDEVICE_NAMES: Final = (
    *(f"triton.language.extra.libdevice:{name}" for name in LIBDEVICE),
    *(f"triton.language.extra.cuda.libdevice:{name}" for name in LIBDEVICE if name != "fast_tanhf"),
)
"""Where kernels find them; CUDA's own has no fast_tanhf."""

ON_CUDA: Final = (
    "_DeviceGuard", "current_device", "current_stream", "device", "device_count", "device_of",
    "empty_cache", "get_device_capability", "get_device_name", "get_device_properties",
    "is_available", "is_bf16_supported", "manual_seed", "manual_seed_all",
    "reset_peak_memory_stats", "set_device", "synchronize",
)  # fmt: skip
"""What wrappers of kernels call in `torch.cuda`."""

UPLOADS: Final = ("create_repo", "create_commit", "upload_file", "upload_folder")
"""What sends something to a hub."""

PATCHED: Final[dict[str, str]] = {
    # -- the measured process: what a step is, and where its time goes
    "torch.nn.modules.module:_has_any_global_hook": "Dynamo warns of global hooks; it sees no ours",
    "torch.nn:Module.compile":
        "the compiled call goes past the hooks of modules: it is timed itself",
    "torch.optim:Optimizer.__init__": "where in the script an optimizer is made",
    "torch.autograd:backward": "Tensor.backward, scalers and frameworks all call it",
    "torch.autograd:grad": "the other backward",
    "torch.utils.data.dataloader:DataLoader.__init__": "a loader's settings, and techniques' edits",
    "torch.utils.data.dataloader:DataLoader.__iter__": "workers start here",
    "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": "the wait for a batch",
    "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch":
        "the making of a batch, in workers too",
    "torch.utils.data._utils.fetch:_IterableDatasetFetcher.fetch": "the making of a batch",
    **{
        f"{module}:{name}": "a blocking collective of the script's own"
        for module in ("torch.distributed.distributed_c10d", "torch.distributed")
        for name in (*COLLECTIVES, *LATER_COLLECTIVES)
    },
    "torch.distributed.distributed_c10d:Work.wait": "what was started before is waited for",
    "torch.distributed._functional_collectives:wait_tensor": "the same, of a DTensor's",
    "torch.jit._trace:trace_module": "what TorchScript traces and compares is no step",
    # -- the measured process: sizes that the script states
    "argparse:ArgumentParser.parse_known_args": "batch sizes that a command or a default gives",
    "accelerate.accelerator:Accelerator.__init__": "how many micro-batches it makes a step of",
    "lightning.pytorch.trainer.trainer:Trainer.__init__": "the same",
    "pytorch_lightning.trainer.trainer:Trainer.__init__": "the same",
    # -- the measured process: habits that cost time inside the loop
    "torch._tensor_str:_str": "a tensor that is printed is waited for; repr and format end here",
    "gc:collect": "counted; and passed over by no-forced-gc",
    "torch.cuda:empty_cache": "counted; and passed over by no-empty-cache",
    "torch.optim:Optimizer.zero_grad": "zeroing in place is counted, or overruled by set-to-none",
    "torch.nn:Module.zero_grad": "the same, of a module",
    "torch.amp:GradScaler.scale": "how far the losses that are seen are scaled",
    "torch.utils.checkpoint:checkpoint":
        "what is computed a second time; removed by no-checkpointing",
    **dict.fromkeys(
        ("torch.jit:load", "torch.jit:trace", "torch.jit:script"),
        "the line that makes a TorchScript program, which is deprecated",
    ),
    "torch.distributions:Distribution.__init__":
        "what checks of parameters take; left out by no-argument-checks",
    "torch.distributions:Distribution._validate_sample": "the same, of values",
    **dict.fromkeys(
        (
            "torchdiffeq._impl.adjoint:OdeintAdjointMethod.forward",
            "torchdiffeq._impl.adjoint:OdeintAdjointMethod.backward",
            "torchsde._core.adjoint:_SdeintAdjointMethod.forward",
            "torchsde._core.adjoint:_SdeintAdjointMethod.backward",
        ),
        "what a second solve in backward takes, and which line asks for it",
    ),
    **dict.fromkeys(
        ("torchdiffeq:odeint_adjoint", "torchsde:sdeint_adjoint"),
        "differential equations that are not solved again in backward (no-adjoint)",
    ),
    # -- the measured process: the user's files and seeds stay the user's
    "torch:save": "an early end must not leave a half-trained file in the place of a good one",
    "torch.jit:save": "as torch.save: written in C++, where no audit hook sees it",
    "safetensors.torch:serialize_file": "the same, in Rust",
    "safetensors.numpy:serialize_file": "the same, in Rust",
    "pyarrow.parquet.core:ParquetWriter.__init__": "the same, in C++",
    "pandas.io.parquet:to_parquet": "the same, in C++",
    **{
        f"huggingface_hub.hf_api:{owner}{name}": "a measured run uploads nothing"
        for owner in ("HfApi.", "")
        for name in UPLOADS
    },
    # -- a hub that does not answer
    "huggingface_hub.constants:HF_HUB_OFFLINE": "it is asked once, not again for each file",
    **dict.fromkeys(
        (
            "wandb:init", "mlflow:set_tracking_uri", "mlflow:set_registry_uri",
            "mlflow.tracking.client:MlflowClient.__init__", "comet_ml:start",
            "comet_ml:Experiment.__init__", "neptune:init_run", "clearml:Task.set_offline",
            "swanlab:init",
        ),
        "a measured run stays offline whatever the script's own calls say",
    ),
    "os:get_terminal_size": "a script's output goes to us, and not to the user's terminal",
    "os:replace": "an overlay without root's rights cannot rename folders of its lower layer",
    "os:rename": "as os.replace",
    "os:_exit": "a script that leaves like this says what was seen of it first",
    "torch:manual_seed": "other seeds tell how far chance alone moves a loss",
    "torch.random:manual_seed": "as torch.manual_seed",
    "torch.cuda:manual_seed_all": "as torch.manual_seed",
    "random:seed": "as torch.manual_seed",
    "numpy.random:seed": "as torch.manual_seed",
    "numpy.random:default_rng": "as torch.manual_seed",
    "numpy.random.bit_generator:randbits": "runs that are compared draw the same without a seed",
    "torch:seed": "the same",
    "torch.random:seed": "the same",
    # -- the measured process: techniques
    "torch.nn.parallel:DistributedDataParallel.__init__":
        "settings of DDP are constructor arguments",
    "torch.nn.attention:_sdpa_kernel": "scripts import sdpa_kernel by name, and Dynamo knows it",
    "torch.nn.functional:scaled_dot_product_attention":
        "attention outside of autocast (bf16-autocast), or with own masks (sixteen-bit-dropout)",
    **dict.fromkeys(
        (
            "torch:matmul", "torch:bmm", "torch:einsum", "torch:Tensor.matmul",
            "torch:Tensor.bmm", "torch:Tensor.__matmul__",
        ),
        "scores that wait for what attention does to them (fused-attention); sparse matrices by "
        "compressed rows (compressed-rows)",
    ),
    **dict.fromkeys(
        ("torch:mm", "torch:spmm", "torch.sparse:mm", "torch:Tensor.mm"),
        "sparse matrices by compressed rows (compressed-rows)",
    ),
    **dict.fromkeys(
        (
            "transformers.models.gemma.modeling_gemma:apply_rotary_pos_emb",
            "transformers.models.gemma2.modeling_gemma2:apply_rotary_pos_emb",
            "transformers.models.llama.modeling_llama:apply_rotary_pos_emb",
            "transformers.models.mistral.modeling_mistral:apply_rotary_pos_emb",
            "transformers.models.mixtral.modeling_mixtral:apply_rotary_pos_emb",
            "transformers.models.qwen2.modeling_qwen2:apply_rotary_pos_emb",
            "transformers.models.qwen3.modeling_qwen3:apply_rotary_pos_emb",
        ),
        "queries and keys turned by one kernel (fused-kernels)",
    ),
    **{
        f"transformers.models.{name}.modeling_{name}:eager_attention_forward":
            "attention with a soft cap or sinks as one kernel (fused-kernels)"
        for name in (
            "gemma", "gemma2", "gemma3", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen3",
        )
    },
    "torch.nn.functional:dropout": "masks of fewer bits (sixteen-bit-dropout)",
    "torch.nn.functional:cross_entropy": "the loss in chunks (chunked-cross-entropy)",
    "torch:set_anomaly_enabled": "every public switch of anomaly detection ends in it",
    "torch.optim:Optimizer.add_param_group": "which gradients an optimizer owns (fp16-autocast)",
    "torch.optim:Optimizer.profile_hook_step": "wraps the step of every optimizer class",
    "torch:Tensor.to": "which tensors of a batch the script moves (device-prefetch)",
    "torch:Tensor.cuda": "the same",
    "torch.profiler:profile.start": "a profiler that was left on is stopped early (no-profiler)",
    "torch.profiler:profile.stop": "the end of one that was stopped is ignored",
    "torch.profiler:profile.step": "as its stop",
    "torch.autograd.profiler:profile.__enter__": "as torch.profiler's start",
    "torch.autograd.profiler:profile.__exit__": "as torch.profiler's stop",
    # -- Triton's interpreter, in a process of its own (kernels check)
    **dict.fromkeys(
        (
            "triton.runtime.interpreter:InterpreterBuilder.cast_impl",
            "triton.runtime.interpreter:InterpreterBuilder.create_fp_to_fp",
            "triton.runtime.interpreter:InterpreterBuilder.binary_op",
            "triton.runtime.interpreter:InterpreterBuilder.unary_op",
            "triton.runtime.interpreter:InterpreterBuilder.ternary_op",
            "triton.runtime.interpreter:InterpreterBuilder.create_fma",
            "triton.runtime.interpreter:InterpreterBuilder.create_dot",
            "triton.runtime.interpreter:ReduceOps.apply_impl",
            "triton.runtime.interpreter:ScanOps.apply_impl",
        ),
        "bfloat16 and tf32 are computed rightly: the interpreter takes their bits for integers",
    ),
    **dict.fromkeys(
        (
            "triton.runtime.interpreter:GridExecutor.__call__",
            "triton.runtime.interpreter:InterpreterBuilder.set_grid_idx",
            "triton.runtime.interpreter:InterpreterBuilder.create_masked_load",
            "triton.runtime.interpreter:InterpreterBuilder.create_masked_store",
            "triton.runtime.interpreter:InterpreterBuilder.create_atomic_rmw",
            "triton.runtime.interpreter:InterpreterBuilder.create_atomic_cas",
            "triton.runtime.interpreter:InterpreterBuilder.create_barrier",
            "triton.runtime.autotuner:Autotuner.run",
        ),
        "what a launch reads and writes, and its programs in another order",
    ),
    "triton.runtime.interpreter:_patch_lang_tensor":
        "a loop's bound is a number, whatever numpy says",
    "triton.runtime.interpreter:GridExecutor.__init__": "texts that say constexpr; lists as grids",
    "triton.runtime.interpreter:FunctionRewriter._transform_ast": "and, or, not between tensors",
    **dict.fromkeys(
        tuple(f"torch.cuda:{name}" for name in ON_CUDA),
        "an example that asks for CUDA runs on the CPU",
    ),
    "triton.runtime.jit:JITFunction.run": "which kernels an example makes while it runs",
    **dict.fromkeys(
        LIBDEVICE_NAMES,
        "the interpreter has no libdevice: torch computes what a kernel asks of it",
    ),
    # -- numba's CUDA simulator, in a process of its own (lesson)
    **dict.fromkeys(
        (
            "numba.cuda.simulator.cudadrv.devicearray:FakeWithinKernelCUDAArray.__getitem__",
            "numba.cuda.simulator.cudadrv.devicearray:FakeWithinKernelCUDAArray.__setitem__",
            "numba.cuda.simulator.kernelapi:FakeCUDAShared.array",
            "numba.cuda.simulator.kernel:BlockThread.syncthreads",
        ),
        "what the threads of a block touch, barrier by barrier",
    ),
    "numba.cuda.simulator.kernelapi:FakeCUDAModule.__init__": "the simulator has no shuffles",
}  # fmt: skip
"""What `patch` may replace, and why."""


def patch(name: str, make: Callable[[Any], Any]) -> Undo:
    """Put `make(original)` in the place of a name of `PATCHED`.

    A release that lacks the name costs what hangs on it, and a line on stderr, not the run.

    Args:
        name: A key of `PATCHED`.
        make: Is given what stands there now, and returns what shall.

    Returns:
        What puts back what stood there. Where someone has replaced the name again since, theirs
        stays, and a line says so.
    """
    why = PATCHED[name]
    path, _, attribute = name.rpartition("." if "." in name.partition(":")[2] else ":")
    try:
        owner = pkgutil.resolve_name(path)
        original = getattr(owner, attribute)
    except (ImportError, AttributeError) as error:
        _say(f"{name} is not there ({error}); left out: {why}")
        return _nothing
    own = vars(owner).get(attribute, _INHERITED)
    setattr(owner, attribute, make(original))
    placed = vars(owner)[attribute]

    def undo() -> None:
        if vars(owner).get(attribute, _INHERITED) is not placed:
            _say(f"{name} was replaced by another since, who is left in its place")
        elif own is _INHERITED:
            delattr(owner, attribute)
        else:
            setattr(owner, attribute, own)

    return undo


def in_reverse(undos: Sequence[Undo]) -> Undo:
    """One undo of several patches: the last comes off first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo


_INHERITED = object()


def _nothing() -> None:
    pass


def _say(line: str) -> None:
    sys.stderr.write(f"ridgeline: {line}\n")


PRIVATE: Final[dict[str, str]] = {
    "triton.language.standard:_sum_combine": "which reduction is a sum",
    "triton.experimental.gluon.language:SwizzledSharedLayout._to_ir":
        "a layout as the count of bank conflicts takes it",
    # -- numba's CUDA simulator: the array behind a kernel's, and what a block has allocated
    "numba.cuda.simulator.cudadrv.devicearray:FakeWithinKernelCUDAArray._item": "its strides",
    "numba.cuda.simulator.cudadrv.devicearray:FakeCUDAArray._ary": "the same, of what it wraps",
    "numba.cuda.simulator.kernelapi:FakeCUDAShared._allocations": "shared memory of a block",
    "transformers:PreTrainedModel._from_config": "the language model of one that sees",
    # -- transformers: what the parts of a model pass on to each other, for stages of it
    "transformers.models.llama.modeling_llama:LlamaForCausalLM._pp_plan": "where to cut it",
    # -- images: norms of every kind, what they keep, and rounded nodes in an exported graph
    "torch.nn.modules.batchnorm:_BatchNorm": "what batch norms of all dimensions are",
    "torch.ao.quantization.fx:_decomposed": "the operators that round, as exporters know them",
    "torch._C._profiler:_ExperimentalConfig": "a profile of all threads: servers answer in many",
    "torch._C._functorch:is_functorch_wrapped_tensor": "losses that end with a call of torch.func",
    # -- modules: hooks come and go with each call, and tensors are exchanged in place
    "torch.nn.modules.module:_global_forward_pre_hooks": "the hook that sees outermost calls",
    "torch.nn.modules.module:_global_forward_hooks":
        "whether the script has global hooks of its own",
    "torch.nn.modules.module:_global_backward_pre_hooks": "as _global_forward_hooks",
    "torch.nn.modules.module:_global_backward_hooks": "as _global_forward_hooks",
    "torch.nn:Module._forward_hooks":
        "put on and off without a handle; a module with hooks is not fused",
    "torch.nn:Module._forward_pre_hooks": "a module with hooks is not fused",
    "torch.nn:Module._backward_hooks": "a module with hooks is not fused",
    "torch.nn:Module._forward_hooks_with_kwargs": "belongs to _forward_hooks",
    "torch.nn:Module._forward_hooks_always_called": "belongs to _forward_hooks",
    "torch:Tensor._version": "a sparse matrix that was changed in place is compressed anew",
    "torch:Tensor._values": "the elements that a matrix of coordinates stores, coalesced or not",
    "torch.distributions:Distribution._validate_args": "whether a distribution checks arguments",
    "torch:Tensor._make_wrapper_subclass": "scores that wait are tensors in name only",
    "torch.nn:Module._call_impl": "what the compiled or captured call wraps",
    "torch.nn:Module._compiled_call_impl": "where module.compile() puts the call, and so do we",
    "torch.nn:Module._parameters": "a parameter takes another's place; shared ones are told apart",
    "torch.nn:Module._non_persistent_buffers_set": "buffers that no checkpoint holds are not kept",
    "torch.nn:Module._buffers": "the same, of buffers",
    "torch.nn:Module._modules": "children in order, those that are None too",
    "torch.nn:Module._apply": "moves what meta tensors stand for, all of a module at once",
    "torch.nn.modules.conv:_ConvNd": "every convolution",
    "torch._dynamo.eval_frame:OptimizedModule._orig_mod": "the model inside of a compiled one",
    "torch._dynamo.config:recompile_limit": "one compiled shape for each number of sequences",
    "torch._functorch.config:donated_buffer": "a compiled backward can be timed again and again",
    "torch.distributed.tensor:DTensor._local_tensor": "what of a gradient lies on this rank",
    "torch._inductor.config:fallback_random": "the same random numbers as without compiling",
    # -- tensors and operators as they are dispatched
    "torch.utils._python_dispatch:TorchDispatchMode": "sees every operator",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack":
        "modes of the script's own, which ours must not get between",
    "torch.utils._python_dispatch:_pop_mode": "takes ours out from below one of the script's",
    "torch.utils._python_dispatch:_push_mode": "and puts the script's back",
    "torch._subclasses.fake_tensor:FakeTensorMode._mode_key": "which of torch's own modes one is",
    "torch.utils._python_dispatch:_disable_current_modes": "our own work is not counted",
    "torch.utils._pytree:tree_leaves": "the tensors inside of any structure",
    "torch.utils._pytree:tree_flatten": "takes a batch apart",
    "torch.utils._pytree:tree_unflatten": "and puts it together",
    "torch.utils._pytree:tree_map_only": "outputs back in float32",
    "torch:UntypedStorage._cdata": "which tensors share memory",
    "torch._ops:OpOverload._overloadpacket": "an operator without its overload",
    "torch._ops:OpOverload._schema": "which arguments an operator writes to",
    "torch._ops:OpOverloadPacket._qualified_op_name": "its name as traces have it",
    "torch:ops.aten._local_scalar_dense": "a value that the host waits for",
    "torch:ops.aten._unique2": "the same",
    "torch:ops.aten._transformer_encoder_layer_fwd": "FLOPs that torch does not count",
    "torch:ops.aten._native_multi_head_attention": "the same",
    "torch:ops.aten._to_copy": "a cast",
    "torch:ops.aten._softmax": "attention written out",
    "torch:ops.aten._safe_softmax": "the same",
    "torch:ops.aten._sparse_addmm": "products of sparse matrices, whatever asks for them",
    "torch:ops.aten._sparse_mm_reduce_impl": "the same",
    "torch:ops.aten._grouped_mm": "kept by selective recomputation",
    "torch:ops.aten._scaled_dot_product_flash_attention": "fused attention, with its log-sum-exp",
    "torch:ops.aten._scaled_dot_product_flash_attention_backward": "its backward, in a ring",
    "torch:ops.aten._scaled_dot_product_flash_attention_for_cpu": "the same on a CPU",
    "torch:ops.aten._scaled_dot_product_flash_attention_for_cpu_backward": "its backward",
    "torch:ops.aten._scaled_dot_product_efficient_attention": "kept by selective recomputation",
    "torch:ops.aten._scaled_dot_product_cudnn_attention": "kept by selective recomputation",
    "torch:_int_mm": "the only int8 product whose rate can be probed",
    "torch:_weight_int8pack_mm": "int8 weights where torch's kernel is the faster one",
    "torch:ops.aten._convert_weight_to_int4pack_for_cpu": "int4 weights, the same",
    "torch:ops.aten._weight_int4pack_mm_for_cpu": "int4 weights, the same",
    "torch.cpu:_is_avx512_bf16_supported": "whether this CPU multiplies bfloat16",
    "torch.cpu:_is_amx_tile_supported": "the same",
    # -- loaders
    "torch.utils.data.dataloader:_SingleProcessDataLoaderIter":
        "whether this process makes the batches itself",
    "torch.utils.data.dataloader:_SingleProcessDataLoaderIter._dataset_fetcher":
        "what makes them, which can take rows of kept samples instead",
    "torch.utils.data.dataloader:_BaseDataLoaderIter._sampler_iter":
        "the order of an epoch, which can be put into another",
    # -- optimizers, in as many kernels as torch's own
    "torch:_foreach_lerp": "one kernel for all parameters",
    "torch:_foreach_lerp_": "one kernel for all parameters",
    "torch:_foreach_norm": "one kernel for all parameters",
    "torch:_foreach_mul_": "one kernel for all parameters",
    "torch:_foreach_add_": "one kernel for all parameters",
    "torch:_foreach_sign_": "one kernel for all parameters",
    "torch:_amp_foreach_non_finite_check_and_unscale_":
        "what GradScaler does, over sharded gradients",
    "torch.amp:GradScaler._lazy_init_scale_growth_tracker":
        "a scaler that is loaded before its first step",
    "torch.optim._muon:DEFAULT_NS_STEPS": "Muon as torch has it, with its constants",
    "torch.optim._muon:_zeropower_via_newtonschulz": "Muon's own step, over whole matrices",
    # -- autograd and profiling
    "torch.autograd:_profiler_enabled": "whether the script profiles itself",
    "torch.autograd:Variable._execution_engine": "a callback when a backward has ended",
    # -- distributed
    "torch.distributed.tensor.placement_types:_StridedShard":
        "rows of two stacked matrices, sharded",
    "torch.distributed._composable.replicate_with_fsdp:replicate": "DDP as FSDP2 does it",
    "torch.distributed.device_mesh:DeviceMesh._concatenate": "a mesh over axes that do not touch",
    "torch.distributed.device_mesh:DeviceMesh._flatten": "one axis of several",
    "torch.distributed.device_mesh:DeviceMesh._unflatten": "several axes of one",
    "torch.distributed.fsdp:FSDPModule._get_fsdp_state":
        "the precision that FSDP computes a stage in",
    "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._mp_policy": "the same",
    "torch._C:_distributed_c10d._dump_fr_trace_json": "the flight recorder, when a run hangs",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook:_should_compress":
        "torch's own rule",
    # -- transformers
    "transformers:PreTrainedConfig._attn_implementation": "which attention a model runs, or shall",
    "transformers:PreTrainedConfig._experts_implementation":
        "a product per expert, which can be watched",
    "transformers:PreTrainedModel._supports_sdpa": "whether it can be switched to fused attention",
    "transformers:PreTrainedModel._supports_attention_backend": "whether attention can be replaced",
    "transformers.models.gptj.modeling_gptj:GPTJAttention._attn":
        "the product of queries, keys and values, in families with attention of their own",
    "transformers.models.falcon.modeling_falcon:FalconAttention._split_heads":
        "queries, keys and values out of one projection",
    "transformers.models.bloom.modeling_bloom:BloomAttention._reshape": "the same",
    "transformers:PreTrainedModel._init_weights": "how a family starts its weights",
    "transformers:PreTrainedModel._keep_in_fp32_modules": "what it does not compute in half",
    "transformers:PreTrainedModel._keep_in_fp32_modules_strict": "the same, in bfloat16 too",
    "transformers:PreTrainedModel._keys_to_ignore_on_load_unexpected":
        "stored tensors without a place",
    "transformers.modeling_layers:GradientCheckpointingLayer._gradient_checkpointing_func":
        "selective recomputation in the place of the whole",
    "transformers.integrations.moe:use_experts_implementation._is_expert_parallel":
        "marks the experts of a mixture, one tensor each",
    "transformers.integrations.moe:use_experts_implementation._apply_gate":
        "what is between an expert's two products",
    "transformers:AutoModelForImageClassification._model_mapping": "which families classify images",
    # -- Python
    "atexit:_run_exitfuncs": "a script that is ended early still runs what it registered",
    "multiprocessing.connection:Listener._listener": "a time limit on waiting for the script",
    "multiprocessing.connection:SocketListener._socket": "the same",
}  # fmt: skip
"""What is relied upon beyond what its library promises, and for what."""
