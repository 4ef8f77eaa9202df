"""Damaged files at random: from every parser only FormatError may come, quickly, whatever happened to the bytes."""

from __future__ import annotations

import io
import pickle
import struct
import time
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import FormatError, Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.nn.state import gguf_load, load_checkpoint, safe_load, safe_load_metadata, save_checkpoint, torch_load
from glassgrad.tensor import realize_and_read as running

ROUNDS = 1500
NUMBERS = [0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1]


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """One to four accidents: bytes changed, lost, doubled or moved, numbers made extreme, the end cut off."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at, size = int(rng.integers(0, len(out) + 1)), int(rng.integers(1, 17))
        match rng.integers(0, 8):
            case 0: out[at:at + 1] = bytes([rng.integers(0, 256)])
            case 1: out[at:at + 1] = bytes([(out[at] if at < len(out) else 0) ^ (1 << rng.integers(0, 8))])
            case 2: del out[at:at + size]
            case 3: out[at:at] = out[at:at + size]
            case 4: out[at:at] = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
            case 5: out[at:at + 8] = int(rng.choice(np.array(NUMBERS, np.uint64))).to_bytes(8, "little")
            case 6:
                other = int(rng.integers(0, len(out) + 1))
                out[at:at + size] = out[other:other + size]
            case _: del out[at:]
    return bytes(out)


def touch(found: Any) -> None:
    """Read what lies in the file, to see that it can be read: small buffers only, and no kernels."""
    values = found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else ()
    for value in values:
        if isinstance(value, Tensor) and value.uop.op is o.BUFFER and value.nbytes() < 1 << 20:
            bytes(running.bytes_of(value.uop, value.device))


def attack(load: Callable[[bytes], Any], data: bytes, rng: np.random.Generator, rounds: int = ROUNDS) -> int:
    """How many of the damaged files were refused."""
    load(data)
    refused = 0
    for number in range(rounds):
        bad = damaged(data, rng)
        begin = time.perf_counter()
        try:
            touch(load(bad))
        except FormatError as problem:
            assert problem.given and problem.expected and len(str(problem)) < 3000
            refused += 1
        except Exception as problem:
            raise AssertionError(f"round {number}: {type(problem).__name__}: {problem} from {bad!r}") from problem
        assert time.perf_counter() - begin < 60, bad
    return refused


def test_broken_safetensors_files_are_refused_in_words(rng):
    header = (b'{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
              b'"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},'
              b'"s":{"dtype":"U8","shape":[],"data_offsets":[30,31]}}')
    data = len(header).to_bytes(8, "little") + header + bytes(31)
    assert attack(safe_load, data, rng) > ROUNDS // 2
    assert attack(safe_load_metadata, data, rng, 50) > 25


def test_broken_gguf_files_are_refused_in_words(rng):
    text = lambda t: struct.pack("<Q", len(t)) + t
    values = [text(b"general.alignment") + struct.pack("<II", 4, 32),
              text(b"name") + struct.pack("<I", 8) + text(b"model"),
              text(b"list") + struct.pack("<IIQ3I", 9, 4, 3, 1, 2, 3), text(b"yes") + struct.pack("<I", 7) + b"\1",
              text(b"words") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc")]
    tensors = [text(b"w") + struct.pack("<I2QIQ", 2, 4, 2, 0, 0), text(b"q") + struct.pack("<IQIQ", 1, 64, 8, 32)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values + tensors)
    assert attack(gguf_load, head + bytes(-len(head) % 32) + bytes(32 + 68), rng) > ROUNDS // 3


PICKLE = pickle.dumps({"a": [1, -2, 3.5, None, True, "text", (1, 2), {"b": "c"}], "d": b"xyz", "e": 1 << 70}, 4)


def tensors_pickled() -> bytes:
    """Two tensors over one storage, as torch.save pickles them."""
    text = lambda t: b"X" + struct.pack("<I", len(t)) + t
    storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\nq\2" + text(b"0") + text(b"cpu") + b"K\x06tQq\3"
    return b"\x80\x02}q\0(" + text(b"w") + b"ctorch._utils\n_rebuild_tensor_v2\nq\1(" + storage \
        + b"K\0K\2K\3\x86K\3K\1\x86\x89}tR" + text(b"v") \
        + b"h\1(h\3K\1K\2K\2\x86K\1K\2\x86\x89ccollections\nOrderedDict\n)RtR" + text(b"n") + b"G" + bytes(8) + b"u."


@pytest.mark.parametrize("pickled", [PICKLE, tensors_pickled()], ids=["values", "tensors"])
def test_broken_zip_files_of_pytorch_are_refused_in_words(rng, pickled):
    def packed(data: bytes) -> bytes:
        file = io.BytesIO()
        records = {"x/data.pkl": data, "x/byteorder": b"little", "x/data/0": bytes(24), "x/version": b"3"}
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in records.items():
                archive.writestr(name, content)
        return file.getvalue()
    assert attack(torch_load, packed(pickled), rng) > ROUNDS // 3                      # the archive damaged
    assert attack(lambda bad: torch_load(packed(bad)), pickled, rng) > ROUNDS // 4     # the pickle in it damaged


@pytest.mark.parametrize("pickled, keys, data", [
    (PICKLE, [], b""), (tensors_pickled(), ["0"], struct.pack("<q", 6) + bytes(24))], ids=["values", "tensors"])
def test_broken_legacy_files_of_pytorch_are_refused_in_words(rng, pickled, keys, data):
    facts = b"".join(pickle.dumps(fact, 2) for fact in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    behind = pickle.dumps(keys, 2) + data
    assert attack(torch_load, facts + pickled + behind, rng) > ROUNDS // 3
    assert attack(lambda bad: torch_load(facts + bad + behind), pickled, rng) > ROUNDS // 4


def test_broken_checkpoints_are_refused_in_words(rng, tmp_path):
    model = {"w": Tensor([1.0, 2.0]), "n": Tensor([3])}
    save_checkpoint(tmp_path / "x", model, [Tensor([4.0]), {"lr": 0.5}], step=3, extra={"a": [1, None]})
    data = (tmp_path / "x").read_bytes()

    def load(bad: bytes) -> Any:
        try:
            return load_checkpoint(bad, {"w": Tensor([0.0, 0.0]), "n": Tensor([0])}, [Tensor([0.0]), {"lr": 0.0}])
        except Exception as problem:
            if "does not fit the model" in str(problem):             # a good file of another model: another error
                raise FormatError("another model", "x", "y") from None
            raise
    before = running.number_in(Tensor.rand(1).uop, "CPU")
    assert attack(load, data, rng, 200) > 100 and before < 1
    Tensor.manual_seed(0)
