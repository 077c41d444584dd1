"""Make the inputs that the public scripts read, from files that every machine has.

    python tests/public/prepare.py FOLDER

FOLDER holds the checkouts that `scripts.toml` names. Nothing is downloaded: texts are Python's
own library sources, tables are drawn from a fixed seed, models are small and untrained.
"""

from __future__ import annotations

import csv
import json
import pickle
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import drawn_inputs as drawn
import numpy as np

NOTEBOOKS = (
    "nflows/examples/moons.ipynb",
    "normalizing-flows/examples/real_nvp.ipynb",
    "normalizing-flows/examples/neural_spline_flow.ipynb",
    "pykan/hellokan.ipynb",
    "gpytorch/examples/01_Exact_GPs/Simple_GP_Regression.ipynb",
    "gpytorch/examples/01_Exact_GPs/Spectral_Mixture_GP_Regression.ipynb",
    "jayroxis-PINNs/Burgers Equation/Burgers * (PyTorch).ipynb",
    "deeplearning-models/pytorch_ipynb/cnn/cnn-lenet5-mnist.ipynb",
    "deeplearning-models/pytorch_ipynb/mlp/mlp-fromscratch__sigmoid-mse.ipynb",
    "siamese-triplet/Experiments_MNIST.ipynb",
    "conditional-flow-matching/examples/2D_tutorials/Flow_matching_tutorial.ipynb",
)

STAND_IN_FOR_TIKTOKEN = '''"""Bytes for tokens, where GPT-2's merges would be downloaded."""


class Encoding:
    n_vocab = 50257
    max_token_value = 50256
    eot_token = 50256

    def encode(self, text, **_options):
        return list(text.encode())

    encode_ordinary = encode

    def decode(self, tokens):
        return bytes(token % 256 for token in tokens).decode(errors="replace")


def get_encoding(_name):
    return Encoding()


encoding_for_model = get_encoding
'''

STAND_IN_FOR_EVALUATE = '''"""Accuracy and F1 without a download, where `evaluate` is missing."""


class Metric:
    def __init__(self):
        self.pairs = []

    def add_batch(self, predictions, references):
        self.pairs += zip(predictions.tolist(), references.tolist())

    def compute(self):
        right = sum(a == b for a, b in self.pairs) / max(1, len(self.pairs))
        positives = sum(a == 1 for a, _ in self.pairs) + sum(b == 1 for _, b in self.pairs)
        both = sum(a == b == 1 for a, b in self.pairs)
        self.pairs = []
        return {"accuracy": right, "f1": 2 * both / positives if positives else 0.0}


def load(*_names, **_options):
    return Metric()
'''


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def library_text() -> str:
    sources = sorted(Path(json.__file__).parents[1].glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
    return "".join(letter for letter in text if ord(letter) < 128)


def character_files(folder: Path, text: str) -> None:
    """nanoGPT's character data set: token ids as uint16, and the alphabet."""
    letters = sorted(set(text))
    number = {letter: index for index, letter in enumerate(letters)}
    ids = np.array([number[letter] for letter in text], dtype=np.uint16)
    cut = len(ids) * 9 // 10
    folder.mkdir(parents=True, exist_ok=True)
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": number}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def token_shards(folder: Path) -> None:
    """Three files of token ids, as llama2.c's own preparation leaves them."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        ids = draw.integers(0, 32_000, 300_000).astype(np.uint16)
        ids.tofile(folder / f"data{number:02d}.bin")


def short_wikitext(folder: Path, text: str) -> None:
    """WikiText-2 cut to an epoch of about a minute; library text where a part is missing."""
    kept = folder / "valid.whole"
    if not kept.exists():
        whole = folder / "valid.txt"
        write(kept, whole.read_text(encoding="utf-8") if whole.exists() else text[:1_000_000])
    lines = kept.read_text(encoding="utf-8").splitlines(keepends=True)
    for name, start, end in (("train", 0, 1500), ("valid", 1500, 1600), ("test", 1600, 1700)):
        write(folder / f"{name}.txt", "".join(lines[start:end]))


def drawn_cora(folder: Path) -> None:
    """The papers of Cora's citation file, with words and classes drawn at random."""
    citations = (folder / "cora.cites").read_text().split()
    papers = sorted(set(citations), key=int)
    draw = np.random.default_rng(0)
    words = (draw.random((len(papers), 1433)) < 0.0127).astype(int)
    classes = [f"class_{draw.integers(7)}" for _ in papers]
    rows = zip(papers, words, classes, strict=True)
    lines = ("\t".join([paper, *map(str, row), label]) for paper, row, label in rows)
    write(folder / "cora.content", "\n".join(lines) + "\n")


def small_llama(folder: Path, lines: list[str]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    tokenizer.train_from_iterator(
        lines[:20_000], trainers.BpeTrainer(vocab_size=1000, special_tokens=special)
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def small_bert(folder: Path, lines: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        lines[:20_000], trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special)
    )
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=256,
    ).save_pretrained(folder)  # fmt: skip
    config = BertConfig(
        vocab_size=2000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)


def sentence_pairs(folder: Path, lines: list[str]) -> None:
    """Pairs in the shape of MRPC: equal lines of source are a match."""
    draw = random.Random(0)
    for name, count in (("train", 800), ("dev", 64)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["label", "sentence1", "sentence2"])
            for index in range(count):
                first = draw.choice(lines)
                second = draw.choice(lines) if index % 2 else first
                label = "equivalent" if first == second else "not_equivalent"
                table.writerow([label, first, second])


def vocabulary(checkout: Path, folder: Path, text: str) -> None:
    """Pairs of lines with a tab between, and their words as that repository counts them."""
    lines = [words for line in text[:100_000].splitlines() if (words := " ".join(line.split()))]
    pairs, vocab = folder / "pairs.txt", folder / "bert.vocab"
    write(pairs, "".join(f"{one}\t{two}\n" for one, two in pairwise(lines)))
    build = "from bert_pytorch.dataset.vocab import build; build()"
    words = [sys.executable, "-c", build, "-c", str(pairs), "-o", str(vocab)]
    subprocess.run(words, cwd=checkout, check=True, capture_output=True)


def shared_inputs(root: Path, text: str) -> None:
    """What several scripts read, through links that `scripts.toml` names."""
    inputs = root / "inputs"
    drawn.drawn_mnist(inputs / "mnist")
    drawn.molecules(inputs / "TU/MUTAG")
    drawn.waves(inputs / "traindata.pt")
    drawn.speech(inputs / "speech", ("yes", "no", "up", "down"))
    drawn.ratings(inputs / "ratings")
    drawn.series(inputs / "series/ETTh1.csv")
    drawn.token_file(inputs / "tokens.bin", text)
    write(inputs / "text/input.txt", text[:400_000])
    write(inputs / "text/short.txt", text[:20_000])
    drawn.mnist_of_keras(inputs / "keras/datasets/mnist.npz", inputs / "mnist")
    drawn.drawn_cifar(inputs / "cifar")
    drawn.pictures(inputs / "images")
    drawn.digits(inputs / "digits", inputs / "mnist")
    drawn.boxes(inputs / "shapes")
    drawn.segments(inputs / "segments")
    if (root / "BERT-pytorch").exists():
        vocabulary(root / "BERT-pytorch", inputs / "text", text)
    for notebook in NOTEBOOKS:
        for path in root.glob(notebook):
            drawn.exported(path)
    if (root / "gae/gae").exists():
        drawn.planetoid(inputs / "Planetoid", root / "gae/gae/data")
    write(root / "shims/tiktoken.py", STAND_IN_FOR_TIKTOKEN)
    write(root / "shims/pyDOE.py", "from pydoe import *\n")
    write(root / "shims/gym.py", drawn.GYM.format(old_answers=""))
    write(root / "old_gym/gym.py", drawn.GYM.format(old_answers=drawn.OLD_ANSWERS))


def random_gpt2(folder: Path) -> None:
    """GPT-2's smallest, untrained, as its first port to PyTorch reads it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    weights = GPT2LMHeadModel(GPT2Config()).transformer.state_dict()
    torch.save(weights, folder / "gpt2-pytorch_model.bin")


def small_gpt2(folder: Path, vocabulary: Path) -> None:
    """A small untrained GPT-2 with the real one's vocabulary, which lies in a checkout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder.mkdir(exist_ok=True)
    for name, source in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        write(folder / name, (vocabulary / source).read_text(encoding="utf-8"))
    write(folder / "tokenizer_config.json", json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    config = GPT2Config(n_embd=64, n_layer=3, n_head=4, n_positions=512)
    GPT2LMHeadModel(config).save_pretrained(folder)


def seed_tasks(folder: Path) -> None:
    """The tasks that lie beside the script, in the form that it trains on, six times over."""
    rows = []
    for line in (folder / "seed_tasks.jsonl").read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        rows += [{"instruction": task["instruction"], **one} for one in task["instances"]]
    write(folder / "tasks.json", json.dumps((6 * rows)[:1000]))


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tests/public/prepare.py FOLDER")
    root = Path(sys.argv[1]).resolve()
    text = library_text()
    lines = [line.strip().replace('"', "'") for line in text.splitlines() if len(line) > 20]
    if (root / "nanoGPT").exists():
        character_files(root / "nanoGPT/data/shakespeare_char", text[:1_000_000])
    if (root / "llama2.c").exists():
        token_shards(root / "llama2.c/data/TinyStories_all_data")
    if (root / "examples").exists():
        short_wikitext(root / "examples/word_language_model/data/wikitext-2", text)
    if (root / "pygcn").exists():
        drawn_cora(root / "pygcn/data/cora")
    if (root / "accelerate").exists():
        small_bert(root / "accelerate/bert-base-cased", lines)
        sentence_pairs(root / "accelerate/tests/test_samples/MRPC", lines)
        write(root / "shims/evaluate.py", STAND_IN_FOR_EVALUATE)
    if (root / "gpt-2-Pytorch").exists():
        random_gpt2(root / "gpt-2-Pytorch")
        small_gpt2(root / "tiny_gpt2", root / "gpt-2-Pytorch/GPT2")
    if (root / "stanford_alpaca").exists():
        seed_tasks(root / "stanford_alpaca")
        write(root / "shims/openai.py", "class openai_object:\n    OpenAIObject = dict\n")
    shared_inputs(root, text)
    small_llama(root / "tiny_llama", lines)
    chosen = ({"prompt": a, "chosen": b, "rejected": b[::-1]} for a, b in pairwise(lines[:2000]))
    write(root / "preferences/train.jsonl", "".join(json.dumps(row) + "\n" for row in chosen))
    texts = ("\n".join(lines[start : start + 8]) for start in range(0, 8000, 8))
    write(root / "text_dataset/train.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in texts))


if __name__ == "__main__":
    main()
