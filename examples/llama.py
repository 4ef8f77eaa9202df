"""Llama tells a story: rotary positions, grouped attention, a key/value cache, byte-pair tokens, all in one file.

In: a checkpoint of llama2.c (.bin with its tokenizer), or a GGUF file. Out: a story, and tokens per second.

    python examples/llama.py                                      the smallest story teller, 260 thousand weights
    python examples/llama.py --prompt "The dog" --temperature 0.8
    python examples/llama.py --tokens 50 --checkpoint story.safetensors      the same command goes on with the story
"""

from __future__ import annotations

import argparse
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import at_least_one, find_file

from glassgrad import GlassgradError, InputError, Tensor, Variable, dtypes, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.state import gguf_load, load_checkpoint, load_state_dict, save_checkpoint

ADDRESS = "https://huggingface.co/karpathy/tinyllamas/resolve/main/stories260K/"
BEGIN, END = 1, 2                       # tokens that open and close a text


@dataclass
class Config:
    """The sizes of a model."""
    width: int
    hidden: int
    layers: int
    heads: int
    groups: int                         # of heads that share one key and value
    words: int
    length: int                         # most tokens that it can look back on
    epsilon: float = 1e-5
    base: float = 10000.0               # of the rotary angles


class Attention:
    """Every token looks back on all tokens so far, whose keys and values wait in a cache."""

    def __init__(self, c: Config):
        self.config, self.size = c, c.width // c.heads
        self.wq, self.wo = (nn.Linear(c.width, c.width, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(c.width, c.groups * self.size, bias=False) for _ in range(2))

    def __call__(self, x: Tensor, cosine: Tensor, sine: Tensor, here: Variable,
                 cache: tuple[Tensor, Tensor]) -> Tensor:
        c, size = self.config, self.size
        q = rotate(self.wq(x).reshape(c.heads, size), cosine, sine)
        k = rotate(self.wk(x).reshape(c.groups, size), cosine, sine)
        v = self.wv(x).reshape(c.groups, size)
        for stored, new in zip(cache, (k, v)):                      # each (length, groups, size)
            stored[here] = new
        keys, values = (kept[:here + 1].permute(1, 0, 2).unsqueeze(1) for kept in cache)   # of the tokens so far
        q = q.reshape(c.groups, c.heads // c.groups, 1, size)       # heads of a group share its keys
        weights = ((q * keys).sum(-1) / size ** 0.5).softmax(-1)    # (groups, heads, tokens)
        mixed = (weights.unsqueeze(-1) * values).sum(2)             # (groups, heads, size)
        return self.wo(mixed.reshape(c.width))


class FeedForward:
    """SwiGLU: one product decides how much of the other passes."""

    def __init__(self, c: Config):
        self.w1, self.w3 = (nn.Linear(c.width, c.hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(c.hidden, c.width, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.w2(self.w1(x).silu() * self.w3(x))


class Block:
    def __init__(self, c: Config):
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(c.width, eps=c.epsilon), nn.RMSNorm(c.width, eps=c.epsilon)

    def __call__(self, x: Tensor, *rest: Any) -> Tensor:
        x = x + self.attention(self.attention_norm(x), *rest)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama:
    """Parameters are named as in Meta's checkpoints."""

    def __init__(self, c: Config):
        self.config = c
        self.tok_embeddings = nn.Embedding(c.words, c.width)
        self.layers = [Block(c) for _ in range(c.layers)]
        self.norm = nn.RMSNorm(c.width, eps=c.epsilon)
        self.output = nn.Linear(c.width, c.words, bias=False)

    def __call__(self, token: Tensor, here: Variable, caches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Scores of the next token, given one token and its place; the caches learn the token."""
        c = self.config
        size = c.width // c.heads
        rates = 1.0 / c.base ** (Tensor.arange(0, size, 2).float() / size)
        angles = rates * here                                       # (size / 2,)
        x = self.tok_embeddings(token).reshape(c.width)
        for block, cache in zip(self.layers, caches):
            x = block(x, angles.cos(), angles.sin(), here, cache)
        return self.output(self.norm(x))

    def empty_caches(self) -> list[tuple[Tensor, Tensor]]:
        """Memory for the keys and values of every layer."""
        c = self.config
        shape = (c.length, c.groups, c.width // c.heads)
        return [(Tensor.zeros(shape).contiguous().realize(), Tensor.zeros(shape).contiguous().realize())
                for _ in self.layers]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn each pair of neighbours by its angle: (heads, size) to the same."""
    pairs = x.reshape(x.shape[0], -1, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return Tensor.stack(a * cosine - b * sine, a * sine + b * cosine, dim=-1).reshape(x.shape)


# ---- files


def load(path: Path, tokenizer: Path | None) -> tuple[Llama, Tokenizer]:
    """A model and its tokens from a GGUF file, or from a .bin file and its tokenizer."""
    return load_gguf(path) if path.suffix == ".gguf" else load_llama2c(path, tokenizer)


def load_llama2c(path: Path, tokenizer: Path | None) -> tuple[Llama, Tokenizer]:
    """The format of llama2.c: seven sizes, then float32 weights, each kind for all layers at once."""
    data = path.read_bytes()
    if len(data) < 28:
        raise InputError("not a llama2.c checkpoint", given=f"{path} of {len(data)} bytes",
                         expected="a header of 28 bytes", fix="check the path")
    width, hidden, layers, heads, groups, words, length = struct.unpack("<7i", data[:28])
    shared, words = words > 0, abs(words)
    c = Config(width, hidden, layers, heads, groups, words, length)
    narrow = width // heads * groups
    numbers, at = np.frombuffer(data, np.float32, offset=28), 0
    weights: dict[str, Tensor] = {}

    def take(name: str, *shape: int) -> None:
        nonlocal at
        count = int(np.prod(shape))
        if at + count > len(numbers):
            raise InputError("the checkpoint ends too early", given=f"{path} of {len(data):,} bytes",
                             expected=f"{count:,} numbers for {name}", fix="fetch it again")
        part = numbers[at:at + count].reshape(shape)
        at += count
        if "*" in name:
            weights.update({name.replace("*", str(i)): Tensor(one) for i, one in enumerate(part)})
        else:
            weights[name] = Tensor(part)

    take("tok_embeddings.weight", words, width)
    take("layers.*.attention_norm.weight", layers, width)
    take("layers.*.attention.wq.weight", layers, width, width)
    take("layers.*.attention.wk.weight", layers, narrow, width)
    take("layers.*.attention.wv.weight", layers, narrow, width)
    take("layers.*.attention.wo.weight", layers, width, width)
    take("layers.*.ffn_norm.weight", layers, width)
    take("layers.*.feed_forward.w1.weight", layers, hidden, width)
    take("layers.*.feed_forward.w2.weight", layers, width, hidden)
    take("layers.*.feed_forward.w3.weight", layers, hidden, width)
    take("norm.weight", width)
    at += length * (width // heads)                     # cosines and sines, which we compute
    if shared:
        weights["output.weight"] = weights["tok_embeddings.weight"]
    else:
        take("output.weight", words, width)
    model = Llama(c)
    load_state_dict(model, weights, verbose=False)
    if tokenizer is None:
        raise InputError("a llama2.c checkpoint comes with a tokenizer", given="no --tokenizer", expected="a .bin file",
                         fix="name it: --tokenizer tok512.bin")
    return model, Tokenizer.from_llama2c(tokenizer, words)


GGUF_NAMES = {"token_embd": "tok_embeddings", "output_norm": "norm", "output": "output", "attn_norm": "attention_norm",
              "attn_q": "attention.wq", "attn_k": "attention.wk", "attn_v": "attention.wv",
              "attn_output": "attention.wo", "ffn_norm": "ffn_norm", "ffn_gate": "feed_forward.w1",
              "ffn_down": "feed_forward.w2", "ffn_up": "feed_forward.w3"}


def load_gguf(path: Path) -> tuple[Llama, Tokenizer]:
    """llama.cpp's format: sizes and tokens are in the file, weights may be quantised."""
    facts, tensors = gguf_load(path)
    if facts.get("general.architecture") != "llama":
        raise InputError("not a Llama", given=f"{path}: {facts.get('general.architecture')}", expected="llama",
                         fix="take another GGUF file")

    def fact(name: str) -> Any: return facts[f"llama.{name}"]

    tokens = facts["tokenizer.ggml.tokens"]
    c = Config(fact("embedding_length"), fact("feed_forward_length"), fact("block_count"), fact("attention.head_count"),
               fact("attention.head_count_kv"), len(tokens), fact("context_length"),
               fact("attention.layer_norm_rms_epsilon"), fact("rope.freq_base"))
    weights = {}
    for name, tensor in tensors.items():
        *layer, kind, _ = name.split(".")               # blk.3.attn_q.weight, token_embd.weight
        prefix = f"layers.{layer[1]}." if layer else ""
        weights[f"{prefix}{GGUF_NAMES[kind]}.weight"] = tensor.float().realize()
    weights.setdefault("output.weight", weights["tok_embeddings.weight"])
    model = Llama(c)
    load_state_dict(model, weights, verbose=False)
    pieces = [token.replace("\u2581", " ").encode() for token in tokens]
    for i, piece in enumerate(pieces):
        if facts["tokenizer.ggml.token_type"][i] == 6:  # <0x0A>: a single byte
            pieces[i] = bytes([int(piece[3:5], 16)])
    return model, Tokenizer(pieces, list(facts["tokenizer.ggml.scores"]))


class Tokenizer:
    """Byte-pair tokens: the best-scored neighbours join until none can."""

    def __init__(self, pieces: Sequence[bytes], scores: Sequence[float]):
        self.pieces, self.scores = list(pieces), list(scores)
        self.number = {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}

    @classmethod
    def from_llama2c(cls, path: Path, words: int) -> Tokenizer:
        """The format of llama2.c: the longest token's length, then a score, a length and bytes for each token."""
        data, at = path.read_bytes(), 4
        pieces, scores = [], []
        for _ in range(words):
            score, length = struct.unpack_from("<fi", data, at)
            piece, at = data[at + 8:at + 8 + length], at + 8 + length
            if len(piece) == 6 and piece.startswith(b"<0x"):
                piece = bytes([int(piece[3:5], 16)])
            pieces.append(piece)
            scores.append(score)
        return cls(pieces, scores)

    def encode(self, text: str) -> list[int]:
        """A text as tokens, with the one that begins."""
        tokens: list[int] = []
        for character in " " + text if text else "":
            raw = character.encode()
            tokens += [self.number[raw]] if raw in self.number else [byte + 3 for byte in raw]
        while True:
            joined = [(self.scores[self.number[both]], -i) for i, pair in enumerate(zip(tokens, tokens[1:]))
                      if (both := self.pieces[pair[0]] + self.pieces[pair[1]]) in self.number]
            if not joined:
                return [BEGIN, *tokens]
            i = -max(joined)[1]
            tokens[i:i + 2] = [self.number[self.pieces[tokens[i]] + self.pieces[tokens[i + 1]]]]

    def decode(self, token: int, before: int) -> bytes:
        """The bytes of a token; the blank that begins a text is not part of it."""
        piece = self.pieces[token]
        return piece[1:] if before == BEGIN and piece.startswith(b" ") else piece


# ---- telling


class Teller:
    """A model in the middle of a text."""

    def __init__(self, model: Llama, temperature: float = 0.0):
        caches = model.empty_caches()
        self.model, self.caches, self.tokens = model, caches, [BEGIN]
        self.place = Variable("place", 0, model.config.length - 1)

        @TinyJit                                        # sees the model and the caches, and nothing that changes
        def follow(token: Tensor, here: Variable) -> Tensor:
            scores = model(token, here, caches)
            if temperature:                             # the largest of scores plus Gumbel noise is a fair draw
                noise = -(-Tensor.rand(scores.shape[0]).clamp(1e-7, 1.0 - 1e-7).log()).log()
                scores = scores / temperature + noise
            return scores.argmax()

        self.follow = follow

    def tell(self, prompt: Sequence[int], most: int) -> Iterator[int]:
        """The prompt's tokens as they are, then the model's, until it ends the text."""
        waiting = list(prompt)
        limit = min(most, self.model.config.length)
        while len(self.tokens) < limit:
            here = self.place.bind(len(self.tokens) - 1)        # one capture serves every place
            likely = self.follow(Tensor([self.tokens[-1]], dtype=dtypes.int32), here)
            token = waiting.pop(0) if waiting else int(likely.item())
            if token in (BEGIN, END):
                return
            self.tokens.append(token)
            yield token


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell a story; the exit status."""
    parser = argparse.ArgumentParser(description="A small Llama tells a story.", epilog=__doc__.split("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path,
                        help="a .bin of llama2.c or a .gguf of yours, quantised or not (default: stories260K)")
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer of a .bin (default: tok512.bin)")
    parser.add_argument("--prompt", default="", help="how the story begins")
    parser.add_argument("--tokens", type=at_least_one, default=256, help="how long it may become (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.0,
                        help="0, the default, always takes the likeliest token")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers, above temperature 0 (default: 1)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE",
                        help="save the story here, with all the model remembers of it; go on with it when it is there")
    options = parser.parse_args(arguments)
    if options.temperature < 0:
        parser.error("--temperature must be 0 or more")
    Tensor.manual_seed(options.seed)
    try:
        path = options.model or find_file("models/llama2c/stories260K.bin", ADDRESS + "stories260K.bin",
                                          "b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696")
        tokens = options.tokenizer or (None if path.suffix == ".gguf" else find_file(
            "models/llama2c/tok512.bin", ADDRESS + "tok512.bin",
            "037cb335abb25d1fa9e8ecae30ed2a3a8ace9302862ebcdc05d51a6bbb10c312"))
        model, tokenizer = load(path, tokens)
    except (GlassgradError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 1
    c = model.config
    print(f"{path.name}: {c.layers} layers of width {c.width}, {c.words} tokens", file=sys.stderr)
    teller = Teller(model, options.temperature)
    said = tokenizer.encode(options.prompt)[1:]
    if options.checkpoint and options.checkpoint.exists():
        teller.tokens = load_checkpoint(options.checkpoint, teller.caches).extra
        for before, token in zip(teller.tokens, teller.tokens[1:]):
            sys.stdout.buffer.write(tokenizer.decode(token, before))
    count, start = 0, time.perf_counter()
    for number, token in enumerate(teller.tell(said, options.tokens)):
        sys.stdout.buffer.write(tokenizer.decode(token, teller.tokens[-2]))
        sys.stdout.buffer.flush()
        if number == 3:                                 # the jit has captured the step: now it is at full speed
            count, start = -1, time.perf_counter()
        count += 1
    seconds = time.perf_counter() - start
    print(flush=True)
    if options.checkpoint:
        save_checkpoint(options.checkpoint, teller.caches, extra=teller.tokens)
    print(f"{count / seconds:.0f} tokens per second", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
