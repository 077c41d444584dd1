"""Train a word-level LSTM language model on the documentation strings of Python's own library.

Truncated back-propagation through time over contiguous streams of text, as in the classic
word-language-model set-up: the hidden state is carried from one batch to the next and detached.

    python train_lstm.py --steps 100
"""

import argparse
import ast
import collections
import glob
import math
import os
import re
import time

import torch
import torch.nn as nn


def read_docstrings(max_words):
    folder = os.path.dirname(os.__file__)
    words = []
    for path in sorted(glob.glob(os.path.join(folder, "*.py"))):
        with open(path, encoding="utf-8", errors="ignore") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                words.extend(re.findall(r"\w+|[^\w\s]", text.lower()))
        if len(words) >= max_words:
            break
    return words[:max_words]


class Vocabulary:
    def __init__(self, words, size):
        most_common = [word for word, _ in collections.Counter(words).most_common(size - 1)]
        self.words = ["<unk>", *most_common]
        self.index = {word: i for i, word in enumerate(self.words)}

    def __len__(self):
        return len(self.words)

    def encode(self, words):
        return torch.tensor([self.index.get(word, 0) for word in words], dtype=torch.long)


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, embedding, hidden, num_layers, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocab_size, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers, dropout=dropout)
        self.decoder = nn.Linear(hidden, vocab_size)

    def forward(self, tokens, state):
        x = self.drop(self.encoder(tokens))
        x, state = self.lstm(x, state)
        return self.decoder(self.drop(x)), state


def batchify(codes, batch_size):
    length = len(codes) // batch_size
    return codes[: length * batch_size].view(batch_size, length).t().contiguous()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--embedding", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=4000)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1111)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    words = read_docstrings(args.words)
    vocabulary = Vocabulary(words, args.vocab)
    data = batchify(vocabulary.encode(words), args.batch_size).to(device)
    print(f"{len(words):,} words, vocabulary of {len(vocabulary):,}")

    model = LanguageModel(
        len(vocabulary), args.embedding, args.hidden, args.layers, args.dropout
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()

    step = 0
    total_loss = 0.0
    start = time.time()
    while step < args.steps:
        state = None
        for i in range(0, len(data) - args.bptt - 1, args.bptt):
            inputs = data[i : i + args.bptt]
            targets = data[i + 1 : i + 1 + args.bptt]
            if state is not None:
                state = tuple(s.detach() for s in state)
            optimizer.zero_grad()
            logits, state = model(inputs, state)
            loss = criterion(logits.view(-1, len(vocabulary)), targets.reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()

            total_loss += loss.item()
            step += 1
            if step % 10 == 0:
                mean_loss = total_loss / 10
                print(
                    f"step {step:4d}  loss {mean_loss:.3f}  perplexity {math.exp(mean_loss):.1f}  "
                    f"{(time.time() - start) / step * 1000:.0f} ms/step"
                )
                total_loss = 0.0
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
