"""GGUF files for llama.cpp: Q8_0, Q4_0, F16; from a dense or a compressed directory.

Symmetric integers in groups of a multiple of 32 keep their levels, so that what GPTQ or AWQ chose
survives (scales become float16); all other weights are rounded to nearest. Embeddings and the head
are Q8_0 in Q4_0 files; vectors are float32; matrices whose depth 32 does not divide are float16.
"""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ridgeline.checkpoints.compressed_tensors import WeightReader
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.errors import InputError, MissingExtra, in_words
from ridgeline.kernels.number_formats import ggml
from ridgeline.records.input_file import read_json

Type = Literal["q8_0", "q4_0", "f16"]

_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5


def export(directory: Path, out: Path, kind: Type) -> None:
    """Write the model as one GGUF file.

    Args:
        directory: A Hugging Face directory, dense or compressed-tensors, with its tokenizer.json.
        out: The file; written aside and renamed.
        kind: Of the matrices.

    Raises:
        InputError: An architecture, rope scaling or tokenizer that is not known here.
    """
    try:
        import gguf
    except ImportError:
        raise MissingExtra("gguf", "compress") from None
    saved = WeightReader(directory)
    about = _architecture(saved)
    vocabulary = _Vocabulary(directory, saved.config)
    aside = out.with_name(f".{out.name}.saving")
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(aside, about["name"], use_temp_file=True)
    _describe(writer, saved.config, out.stem, kind)
    vocabulary.describe(writer)
    names = gguf.get_tensor_name_map(
        getattr(gguf.MODEL_ARCH, about["name"].upper()), saved.config["num_hidden_layers"]
    )
    for name in saved.names:
        if "rotary_emb" in name:
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise InputError(f"{directory}: GGUF has no name for {name} of a {about['name']}")
        content, stored = _encoded(saved, name, kind)
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        part = name.split(".")[-2]
        if about["reorder"] and part in heads:
            content = _pairs_beside(content, saved.config[heads[part]])
        raw = None if stored is None else getattr(gguf.GGMLQuantizationType, stored)
        writer.add_tensor(target, content.numpy(), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    aside.replace(out)


def _encoded(saved: WeightReader, name: str, kind: Type) -> tuple[Tensor, str | None]:
    """The content of one tensor, and its type where that is one of bytes."""
    found = saved.read(name)
    weight = found.dequantised() if isinstance(found, Quantised) else found
    levels = found if isinstance(found, Quantised) else None
    if weight.ndim == 1:
        return weight.float(), None
    if kind == "f16" or weight.shape[1] % ggml.BLOCK:
        return weight.to(torch.float16), None
    if kind == "q8_0" or name.startswith(("model.embed_tokens", "lm_head")):
        if levels is not None and _keeps(levels, 8):
            return ggml.join_q8_0(*_parts(levels)), "Q8_0"
        return ggml.encode_q8_0(weight), "Q8_0"
    if levels is not None and _keeps(levels, 4):
        return ggml.join_q4_0(*_parts(levels)), "Q4_0"
    return ggml.encode_q4_0(weight), "Q4_0"


def _keeps(weight: Quantised, bits: int) -> bool:
    """Whether levels can stay as they are."""
    form = weight.format
    whole = form.group is None or form.group % ggml.BLOCK == 0
    return form.kind == "int" and form.symmetric and form.bits <= bits and whole


def _parts(weight: Quantised) -> tuple[Tensor, Tensor]:
    """Levels, and a scale for every 32 of them."""
    outputs, depth = weight.levels.shape
    scales = weight.scales.expand(outputs, -1)
    return weight.levels, scales.repeat_interleave(depth // ggml.BLOCK // scales.shape[1], 1)


def _pairs_beside(rows: Tensor, heads: int) -> Tensor:
    """Rows i and i + d/2 of each head next to each other, as llama.cpp rotates them."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def _architecture(saved: WeightReader) -> dict[str, Any]:
    known = _table()["architectures"]
    model = saved.config.get("model_type")
    if model not in known:
        raise InputError(
            f"{saved.directory}: GGUF export knows {', '.join(known)}, not {model}; llama.cpp's "
            "convert_hf_to_gguf.py reads the uncompressed model"
        )
    scaling = _rope(saved.config).get("rope_type", "default")
    if scaling != "default":
        raise InputError(f"{saved.directory}: rope scaling {scaling!r} is not exported to GGUF")
    return dict(known[model])


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Transformers 5 and, before it, two separate entries."""
    older = {"rope_theta": config.get("rope_theta", 10000.0), **(config.get("rope_scaling") or {})}
    return dict(config.get("rope_parameters") or older)


def _describe(writer: Any, config: dict[str, Any], name: str, kind: Type) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(_rope(config)["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    # llama.cpp's LLAMA_FTYPE_MOSTLY_F16, _Q4_0, _Q8_0
    writer.add_file_type({"f16": 1, "q4_0": 2, "q8_0": 7}[kind])
    writer.add_quantization_version(2)


class _Vocabulary:
    """A byte-level BPE tokenizer.json."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        path = directory / "tokenizer.json"
        try:
            about = read_json(path, dict[str, Any], cure="GGUF files hold their tokenizer")
            model = about["model"]
            vocabulary: dict[str, int] = model["vocab"]
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: no tokenizer ({in_words(error)})") from None
        pieces = about.get("pre_tokenizer") or {}
        if model.get("type") != "BPE" or "ByteLevel" not in json.dumps(pieces):
            raise InputError(f"{path}: byte-level BPE is exported to GGUF, not {model.get('type')}")
        self._pre = _pre_tokenizer(path, pieces)
        self._tokens = [f"[PAD{number}]" for number in range(config["vocab_size"])]
        self._types = [_UNUSED] * config["vocab_size"]
        for token, number in vocabulary.items():
            self._tokens[number], self._types[number] = token, _NORMAL
        for token in about.get("added_tokens", ()):
            self._tokens[token["id"]] = token["content"]
            self._types[token["id"]] = _CONTROL if token["special"] else _USER
        self._merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        self._config = config
        begin = config.get("bos_token_id")
        processor = about.get("post_processor") or {}
        self._adds_begin = begin is not None and self._tokens[begin] in _texts(processor)

    def describe(self, writer: Any) -> None:
        """Put it into the file."""
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self._pre)
        writer.add_token_list(self._tokens)
        writer.add_token_types(self._types)
        writer.add_token_merges(self._merges)
        writer.add_add_bos_token(self._adds_begin)
        for part in ("bos", "eos", "pad"):
            number = self._config.get(f"{part}_token_id")
            number = number[0] if isinstance(number, list) else number
            if number is not None:
                getattr(writer, f"add_{part}_token_id")(number)


def _texts(value: Any) -> set[str]:
    """All texts in a JSON value."""
    if isinstance(value, dict):
        return set().union(*(_texts(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_texts(item) for item in value))
    return {value} if isinstance(value, str) else set()


def _pre_tokenizer(path: Path, pieces: dict[str, Any]) -> str:
    steps = pieces.get("pretokenizers", [pieces])
    patterns = [step["pattern"].get("Regex", "") for step in steps if step["type"] == "Split"]
    own = any(step.get("use_regex", True) for step in steps if step["type"] == "ByteLevel")
    for known in _table()["pre_tokenizers"]:
        if patterns == ([known["pattern"]] if known["pattern"] else []) and own != bool(patterns):
            return str(known["name"])
    raise InputError(f"{path}: llama.cpp's name for its pre-tokenizer is not known here")


def _table() -> dict[str, Any]:
    content = (files("ridgeline.compress.saved") / "gguf_models.toml").read_text("utf-8")
    return tomllib.loads(content)
