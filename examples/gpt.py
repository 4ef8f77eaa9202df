"""GPT-2: train a small one on Shakespeare's characters, or load the published one, and let it write.

In: a text, or GPT-2's weights (safetensors or PyTorch, with vocab.json and merges.txt beside them). Out: new text.

    python examples/gpt.py                                train for 1000 steps, to a validation loss of 1.93; then write
    python examples/gpt.py --checkpoint plays.safetensors --steps 2000
    python examples/gpt.py --weights gpt2/model.safetensors --prompt "The sea"
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import at_least_one, shakespeare, train, training_arguments

from glassgrad import GlassgradError, InputError, Tensor, dtypes, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.state import get_parameters, load_state_dict, safe_load, torch_load


@dataclass
class Config:
    """The sizes of a model; these are for characters."""
    words: int
    length: int = 64
    layers: int = 4
    heads: int = 4
    width: int = 128


class Conv1D:
    """A linear layer whose weight is (in, out), as GPT-2 names and stores it."""

    def __init__(self, inside: int, outside: int, scale: float = 0.02):
        self.weight, self.bias = Tensor.randn(inside, outside) * scale, Tensor.zeros(outside)

    def __call__(self, x: Tensor) -> Tensor:
        return x.linear(self.weight, self.bias)


class Attention:
    """Every place looks back on the places before it."""

    def __init__(self, c: Config):
        self.heads = c.heads
        self.c_attn = Conv1D(c.width, 3 * c.width)
        self.c_proj = Conv1D(c.width, c.width, 0.02 / (2 * c.layers) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads
        q, k, v = (part.reshape(batch, length, self.heads, size).permute(0, 2, 1, 3)     # (batch, heads, length, size)
                   for part in self.c_attn(x).chunk(3, dim=-1))
        mixed = q.scaled_dot_product_attention(k, v, is_causal=True)
        return self.c_proj(mixed.permute(0, 2, 1, 3).reshape(batch, length, width))


class MLP:
    def __init__(self, c: Config):
        self.c_fc = Conv1D(c.width, 4 * c.width)
        self.c_proj = Conv1D(4 * c.width, c.width, 0.02 / (2 * c.layers) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x).gelu())


class Block:
    def __init__(self, c: Config):
        self.ln_1, self.ln_2, self.attn, self.mlp = nn.LayerNorm(c.width), nn.LayerNorm(c.width), Attention(c), MLP(c)

    def __call__(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT:
    """Parameters are named as in the published files."""

    def __init__(self, c: Config):
        self.config = c
        self.wte, self.wpe = nn.Embedding(c.words, c.width), nn.Embedding(c.length, c.width)
        for table in (self.wte, self.wpe):
            table.weight = Tensor.randn(*table.weight.shape) * 0.02
        self.h = [Block(c) for _ in range(c.layers)]
        self.ln_f = nn.LayerNorm(c.width)

    def __call__(self, tokens: Tensor, last: Tensor | None = None) -> Tensor:
        """Scores of what follows each token; with `last`, only of what follows the token at that place."""
        x = self.wte(tokens) + self.wpe(Tensor.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        if last is not None:
            x = x[:, last]
        return self.ln_f(x) @ self.wte.weight.T


def write(model: GPT, prompt: Sequence[int], count: int, temperature: float, seed: int,
          say: Callable[[int], None]) -> None:
    """Tokens that follow the prompt, one by one."""
    @TinyJit
    def scores(tokens: Tensor, last: Tensor) -> Tensor:
        return model(tokens, last).reshape(-1)

    random, text, length = np.random.default_rng(seed), list(prompt), model.config.length
    for _ in range(count):
        seen = text[-length:]                           # the rest of the window is empty and masked
        window = np.zeros((1, length), np.int32)
        window[0, :len(seen)] = seen
        found = scores(Tensor(window), Tensor([len(seen) - 1], dtype=dtypes.int32)).numpy().astype(np.float64)
        if temperature == 0:
            text.append(int(found.argmax()))
        else:
            chance = np.exp((found - found.max()) / temperature)
            text.append(int(random.choice(len(found), p=chance / chance.sum())))
        say(text[-1])


# ---- the published model


def load_gpt2(path: Path) -> tuple[GPT, Tokenizer]:
    """GPT-2's weights in any of its four sizes, and its tokens."""
    found = safe_load(path) if path.suffix == ".safetensors" else torch_load(path)
    weights = {name.removeprefix("transformer."): tensor for name, tensor in found.items()
               if not name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight"))}    # masks; wte once more
    if "wte.weight" not in weights:
        raise InputError("these are not GPT-2's weights", given=f"{path} with {', '.join(list(found)[:3])}, ...",
                         expected="wte.weight, wpe.weight, h.0.attn.c_attn.weight, ...",
                         fix="take model.safetensors of gpt2")
    (words, width), length = weights["wte.weight"].shape, weights["wpe.weight"].shape[0]
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("h."))
    model = GPT(Config(words, length, layers, width // 64, width))
    load_state_dict(model, weights, verbose=False)
    return model, Tokenizer(path.parent)


class Tokenizer:
    """GPT-2's byte pairs: within each word, the pair that was found first joins first."""
    words = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")

    def __init__(self, folder: Path):
        missing = [name for name in ("vocab.json", "merges.txt") if not (folder / name).is_file()]
        if missing:
            raise InputError("GPT-2's tokens are missing", given=f"no {' and no '.join(missing)} in {folder}",
                             expected="both files beside the weights",
                             fix="fetch them from where the weights came from")
        self.number: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        self.rank = {tuple(line.split()): i for i, line in enumerate(lines) if line and not line.startswith("#")}
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]       # bytes that are written as they are
        others = [byte for byte in range(256) if byte not in plain]
        self.letter = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
        self.byte = {letter: byte for byte, letter in self.letter.items()}
        self.piece = {number: piece for piece, number in self.number.items()}

    def encode(self, text: str) -> list[int]:
        tokens = []
        for word in self.words.findall(text):
            parts = [self.letter[byte] for byte in word.encode()]
            while len(parts) > 1:
                best = min(zip(parts, parts[1:]), key=lambda pair: self.rank.get(pair, len(self.rank)))
                if best not in self.rank:
                    break
                i = next(i for i, pair in enumerate(zip(parts, parts[1:])) if pair == best)
                parts[i:i + 2] = ["".join(best)]
            tokens += [self.number[part] for part in parts]
        return tokens

    def decode(self, token: int) -> bytes:
        return bytes(self.byte[letter] for letter in self.piece[token])


# ---- characters of Shakespeare


class Plays:
    """A text as numbers: nine tenths to learn from, the rest to be tested on."""

    def __init__(self, text: str):
        self.characters = sorted(set(text))
        self.number = {c: i for i, c in enumerate(self.characters)}
        numbers = np.array([self.number[c] for c in text], np.int32)
        split = len(numbers) * 9 // 10
        self.training, self.held_out = Tensor(numbers[:split]), Tensor(numbers[split:])

    @staticmethod
    def pieces(numbers: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Pieces of the text, and the same pieces one character later."""
        places = starts.reshape(-1, 1) + Tensor.arange(length)
        return numbers[places], numbers[places + 1]


def train_characters(plays: Plays, options: Any) -> GPT:
    model = GPT(Config(len(plays.characters)))
    length = model.config.length
    optimizer = nn.optim.AdamW(get_parameters(model), lr=options.rate, b2=0.99, weight_decay=0.1)

    def loss_of(numbers: Tensor, starts: Tensor) -> Tensor:
        x, y = plays.pieces(numbers, starts, length)
        return model(x).reshape(-1, len(plays.characters)).cross_entropy(y.reshape(-1))

    @TinyJit
    def learn(starts: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(plays.training, starts)
        loss.backward()
        optimizer.step()
        return loss

    @TinyJit
    def reference(starts: Tensor) -> Tensor:
        return loss_of(plays.held_out, starts)

    def step(number: int) -> Tensor:
        progress = number / options.steps               # warm up, then down to a tenth along a cosine
        optimizer.lr = options.rate * min(1.0, (number + 1) / 50) * (0.55 + 0.45 * float(np.cos(np.pi * progress)))
        random = np.random.default_rng((options.seed, number))
        return learn(Tensor(random.integers(0, len(plays.training) - length - 1, options.batch).astype(np.int32)))

    def validation(pieces: int = 512) -> float:
        """The loss on pieces spread evenly over the held-out text."""
        starts = np.linspace(0, len(plays.held_out) - length - 1, pieces).astype(np.int32).reshape(-1, 64)
        return float(np.mean([reference(Tensor(row)).item() for row in starts]))

    print(f"{sum(p.numel() for p in get_parameters(model)):,} parameters, {len(plays.characters)} characters")
    seconds = train(options, model, optimizer, step, lambda: f"validation {validation():.4f}", 250)
    print(f"validation loss {validation(2048):.4f} after {seconds:.0f} s of training\n")
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """Train or load, then write; the exit status."""
    parser = training_arguments("GPT-2 writes.", 1000, "python examples/gpt.py --checkpoint plays.safetensors")
    parser.add_argument("--batch", type=at_least_one, default=16, help="pieces of text per step (default: 16)")
    parser.add_argument("--rate", type=float, default=3e-3, help="the largest learning rate (default: 0.003)")
    parser.add_argument("--weights", type=Path, help="GPT-2's weights: do not train, write with them")
    parser.add_argument("--prompt", default="\n", help="how the text begins")
    parser.add_argument("--tokens", type=int, default=300, help="how much is written (default: 300)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 always takes the likeliest (default: 0.8)")
    options = parser.parse_args(arguments)
    if min(options.tokens, options.temperature) < 0 or not options.prompt:
        parser.error("--tokens and --temperature must be 0 or more, and --prompt not empty")
    Tensor.manual_seed(options.seed)

    def say(text: bytes) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()

    try:
        if options.weights:
            model, tokens = load_gpt2(options.weights)
            prompt, decode = tokens.encode(options.prompt), tokens.decode
        else:
            plays = Plays(shakespeare())
            unknown = sorted(set(options.prompt) - set(plays.characters))
            if unknown:
                parser.error(f"Shakespeare never writes {''.join(unknown)!r}")
            model = train_characters(plays, options)
            prompt = [plays.number[c] for c in options.prompt]
            decode = lambda token: plays.characters[token].encode()
    except (GlassgradError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    sys.stdout.flush()
    say(options.prompt.encode())
    write(model, prompt, options.tokens, options.temperature, options.seed, lambda token: say(decode(token)))
    print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
