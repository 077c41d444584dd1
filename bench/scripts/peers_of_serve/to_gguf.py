"""A Hugging Face Llama in bf16 as GGUF: python to_gguf.py FOLDER FILE. Needs gguf and numpy."""

import json
import sys
from pathlib import Path

import numpy as np
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map

folder, target = Path(sys.argv[1]), sys.argv[2]
config = json.loads((folder / "config.json").read_text())
heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
writer = GGUFWriter(target, "llama")
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_block_count(config["num_hidden_layers"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_key_length(config["head_dim"])
writer.add_value_length(config["head_dim"])
writer.add_rope_dimension_count(config["head_dim"])
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_rope_freq_base(10000.0)
writer.add_vocab_size(config["vocab_size"])
# Token ids go in and out, so what the tokens are called does not matter.
writer.add_tokenizer_model("llama")
writer.add_token_list([f"<{i}>".encode() for i in range(config["vocab_size"])])
writer.add_token_scores([0.0] * config["vocab_size"])
writer.add_token_types([1] * config["vocab_size"])
names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])


def tensors():
    """Names and bf16 as uint16: eight bytes of length, a header in JSON, the tensors."""
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, about in json.loads(content[8:start]).items():
            if name != "__metadata__":
                assert about["dtype"] == "BF16", about
                first, last = (start + offset for offset in about["data_offsets"])
                yield name, np.frombuffer(content[first:last], np.uint16).reshape(about["shape"])


def interleaved(weight, count):
    """Rotary pairs are neighbours in llama.cpp, halves apart in transformers."""
    parts = weight.reshape(count, 2, weight.shape[0] // count // 2, weight.shape[1])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def ordered(name, bits):
    if name.endswith("q_proj.weight"):
        return interleaved(bits, heads)
    return interleaved(bits, kv_heads) if name.endswith("k_proj.weight") else bits


for name, bits in tensors():
    to = names.get_name(name, try_suffixes=(".weight",))
    if bits.ndim == 1:
        writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32))
    else:
        raw = np.ascontiguousarray(ordered(name, bits)).view(np.uint8)
        writer.add_tensor(to, raw, raw_dtype=GGMLQuantizationType.BF16)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
