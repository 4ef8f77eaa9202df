"""GGUF files, checked against the package gguf: every kind of block, the real files, all metadata; and bad files
refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from model_files import model_file

from glassgrad import FormatError, Tensor, dtypes
from glassgrad.compiler.graph import ops as o
from glassgrad.nn.state import gguf_load
from glassgrad.nn.state.formats.gguf import BLOCKS

NO_JUDGE = "the reference, the package gguf, is not installed"


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(name: str, kind: int, data: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + data


def tensor(name: str = "w", sizes: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def gguf(values: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: bytes = b"", version: int = 3,
         align: int = 32, counts: tuple[int, int] | None = None) -> bytes:
    many = counts or (len(tensors), len(values))
    head = b"GGUF" + struct.pack("<IQQ", version, *many) + b"".join(values) + b"".join(tensors)
    return head + bytes(-len(head) % align) + data


# ---- true files


@pytest.mark.parametrize("name", [blocks.name for blocks in BLOCKS.values()])
def test_blocks_are_what_the_package_makes_of_them(name, rng):
    reference = pytest.importorskip("gguf", reason=NO_JUDGE)
    number, blocks = next((k, b) for k, b in BLOCKS.items() if b.name == name)
    kind = reference.GGMLQuantizationType(number)
    assert kind.name == name and reference.GGML_QUANT_SIZES[kind] == (blocks.weights, blocks.nbytes)
    raw = rng.integers(0, 256, (9, blocks.nbytes), dtype=np.uint8)
    raw[0], raw[1], raw[2] = 0, 255, 127
    with np.errstate(all="ignore"):
        expected = reference.dequantize(raw, kind)
    file = gguf((), (tensor("w", (blocks.weights, 9), number),), raw.tobytes())
    found = gguf_load(file)[1]["w"]
    assert found.shape == (9, blocks.weights) and found.dtype is dtypes.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=0)


def test_every_kind_that_the_package_can_read_is_read():
    reference = pytest.importorskip("gguf", reason=NO_JUDGE)
    known = {blocks.name for blocks in BLOCKS.values()} | {"BF16"}
    assert {kind.name for kind in reference.quants._type_traits} - known == set()


@pytest.mark.parametrize("device", ["CLANG", "PYTHON"])
def test_blocks_are_unpacked_on_any_device(device, rng):
    raw = rng.integers(0, 128, (3, 34), dtype=np.uint8)
    file = gguf((), (tensor("w", (32, 3), 8),), raw.tobytes())
    there = gguf_load(file, device=device)[1]["w"]
    assert there.device == device
    np.testing.assert_array_equal(there.numpy(), gguf_load(file)[1]["w"].numpy())


@pytest.mark.parametrize("kind, dtype", [(0, "float32"), (1, "float16"), (24, "int8"), (25, "int16"), (26, "int32"),
                                         (27, "int64"), (28, "float64"), (30, "bfloat16")])
@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_plain_tensors_are_the_files_own_memory(kind, dtype, tmp_path):
    like = Tensor(np.arange(6).reshape(2, 3)).cast(dtype)
    data = like.bitcast({1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}[like.dtype.itemsize]).numpy().tobytes()
    (tmp_path / "x.gguf").write_bytes(gguf((), (tensor("w", (3, 2), kind),), data))
    found = gguf_load(tmp_path / "x.gguf")[1]["w"]
    assert found.uop.op is o.BUFFER and found.dtype is like.dtype and found.shape == (2, 3)
    np.testing.assert_array_equal(found.numpy(), like.numpy())


def test_every_type_of_metadata():
    arrays = struct.pack("<IQ", 9, 2) + struct.pack("<IQ2h", 3, 2, -1, 5) + struct.pack("<IQ", 8, 1) + text("deep")
    metadata, tensors = gguf_load(gguf((
        value("u8", 0, b"\xff"), value("i8", 1, b"\xff"), value("u16", 2, struct.pack("<H", 65535)),
        value("i16", 3, struct.pack("<h", -2)), value("u32", 4, struct.pack("<I", 1 << 31)),
        value("i32", 5, struct.pack("<i", -3)),
        value("f32", 6, struct.pack("<f", 0.5)), value("yes", 7, b"\1"), value("no", 7, b"\0"),
        value("text", 8, text("grüß")),
        value("u64", 10, struct.pack("<Q", 1 << 63)), value("i64", 11, struct.pack("<q", -4)),
        value("f64", 12, struct.pack("<d", 0.1)),
        value("numbers", 9, struct.pack("<IQ3I", 4, 3, 1, 2, 3)), value("flags", 9, struct.pack("<IQ", 7, 2) + b"\1\0"),
        value("words", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")), value("empty", 9, struct.pack("<IQ", 6, 0)),
        value("arrays", 9, arrays))))
    assert tensors == {} and metadata == {
        "u8": 255, "i8": -1, "u16": 65535, "i16": -2, "u32": 1 << 31, "i32": -3, "f32": 0.5, "yes": True, "no": False,
        "text": "grüß", "u64": 1 << 63, "i64": -4, "f64": 0.1, "numbers": [1, 2, 3], "flags": [True, False],
        "words": ["a", ""], "empty": [], "arrays": [[-1, 5], ["deep"]]}


def test_alignment_is_what_the_file_says(rng):
    data = rng.random(4, dtype=np.float32)
    for align in (8, 64, 4096):
        file = gguf((value("general.alignment", 4, struct.pack("<I", align)),),
                    (tensor("a"), tensor("b", (4,), 0, align if align > 16 else 16)),
                    data.tobytes() + bytes(max(align, 16) - 16) + data.tobytes(), align=align)
        found = gguf_load(file)[1]
        assert found["a"].tolist() == found["b"].tolist() == data.tolist()


def test_version_2_and_what_has_no_elements():
    assert gguf_load(gguf((), (tensor("w", (0,)), tensor("q", (32, 0), 2)), version=2))[1]["q"].shape == (0, 32)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_the_real_files_are_read_as_the_package_reads_them(kind):
    reference = pytest.importorskip("gguf", reason=NO_JUDGE)
    path = model_file(f"gguf/stories260K-{kind}.gguf")
    metadata, tensors = gguf_load(path)
    reader = reference.GGUFReader(path)
    assert metadata["general.architecture"] == "llama" and len(metadata["tokenizer.ggml.tokens"]) == 512
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            assert metadata[name] == pytest.approx(field.contents()) if field.types[-1].name == "FLOAT32" \
                else metadata[name] == field.contents(), name
    assert list(tensors) == [t.name for t in reader.tensors] and len(tensors) == 48
    for theirs in reader.tensors:
        expected = reference.dequantize(theirs.data, theirs.tensor_type)
        assert tensors[theirs.name].shape == expected.shape == tuple(reversed(theirs.shape.tolist()))
        np.testing.assert_array_equal(tensors[theirs.name].numpy(), expected, err_msg=theirs.name)


def test_the_real_file_is_the_model_it_was_made_of():
    path = model_file("llama2c/stories260K.bin")
    width, hidden, layers, heads, kv_heads, vocabulary, _ = struct.unpack("<7i", path.read_bytes()[:28])
    weights = np.fromfile(path, np.float32, offset=28)
    tensors = gguf_load(model_file("gguf/stories260K-f32.gguf"))[1]
    table = weights[:vocabulary * width].reshape(vocabulary, width)
    np.testing.assert_array_equal(tensors["token_embd.weight"].numpy(), table)
    norms = weights[vocabulary * width:][:layers * width].reshape(layers, width)
    for layer in range(layers):
        np.testing.assert_array_equal(tensors[f"blk.{layer}.attn_norm.weight"].numpy(), norms[layer])
    assert tensors["blk.0.ffn_gate.weight"].shape == (hidden, width) and width // heads * kv_heads == 32


# ---- hostile files


ARRAY = lambda kind, count, data=b"": value("a", 9, struct.pack("<IQ", kind, count) + data)
BAD = {
    "nothing": b"", "text": b"hello, this is not a model file", "cut header": gguf()[:20], "version 1": gguf(version=1),
    "version 99": gguf(version=99), "big-endian": gguf(version=3 << 24), "GGML": b"GGML" + gguf()[4:],
    "2^60 tensors": gguf(counts=(1 << 60, 0)), "2^60 values": gguf(counts=(0, 1 << 60)),
    "one value, but none there": gguf(counts=(0, 1)),
    "a name of 2^63 bytes": gguf((struct.pack("<Q", 1 << 63) + b"abc" + bytes(40),)),
    "unknown type": gguf((value("a", 13, bytes(8)),)),
    "name not UTF-8": gguf((value("a", 0, b"\1").replace(b"a", b"\xff"),)), "truth of 2": gguf((value("a", 7, b"\2"),)),
    "two of a name": gguf((value("a", 0, b"\1"),) * 2), "array of 2^61": gguf((ARRAY(0, 1 << 61),)),
    "array of 2^61 texts": gguf((ARRAY(8, 1 << 61),)), "array of unknown": gguf((ARRAY(77, 1, bytes(8)),)),
    "array of truths of 3": gguf((ARRAY(7, 2, b"\1\3"),)),
    "nested arrays": gguf((value("a", 9, struct.pack("<IQ", 9, 1) * 5000),)),
    "alignment 0": gguf((value("general.alignment", 4, bytes(4)),)),
    "alignment 7": gguf((value("general.alignment", 0, b"\7"),)),
    "alignment is a text": gguf((value("general.alignment", 8, text("32")),)),
    "two tensors of a name": gguf((), (tensor(), tensor(offset=32)), bytes(48)),
    "many axes": gguf((), (tensor(sizes=(1,) * 9),), bytes(64)),
    "2^32 axes": gguf((), (text("w") + b"\xff" * 4 + bytes(40),)),
    "unknown kind": gguf((), (tensor(kind=36),), bytes(500)), "removed kind": gguf((), (tensor(kind=4),), bytes(500)),
    "half a block": gguf((), (tensor(sizes=(48,), kind=2),), bytes(64)),
    "block without axes": gguf((), (tensor(sizes=(), kind=2),), bytes(64)),
    "data missing": gguf((), (tensor(),)), "data cut": gguf((), (tensor(),), bytes(15)),
    "offset outside": gguf((), (tensor(offset=1 << 40),), bytes(16)),
    "offset unaligned": gguf((), (tensor(offset=4),), bytes(64)),
    "sizes that wrap around": gguf((), (tensor(sizes=(1 << 33, 1 << 33)),), bytes(64)),
    "sizes of nothing times much": gguf((), (tensor(sizes=(1 << 63, 0)),)),
    "overlap": gguf((), (tensor("a", (16,)), tensor("b", (4,), 0, 32)), bytes(64)),
    "the same bytes twice": gguf((), (tensor("a"), tensor("b")), bytes(64)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name):
    with pytest.raises(FormatError) as problem:
        gguf_load(BAD[name])
    assert problem.value.given and problem.value.expected and problem.value.fix and len(str(problem.value)) < 1500


def test_a_refusal_says_all():
    with pytest.raises(FormatError) as problem:
        gguf_load(BAD["unknown kind"])
    assert str(problem.value).splitlines()[:4] == [
        "these bytes: tensor 'w' is of a kind that cannot be read", "  given:    ggml type 36, before byte 57",
        "  expected: float32, float16, int8, int16, int32, int64, float64, bfloat16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
        "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M, TQ1_0, "
        "TQ2_0, MXFP4, NVFP4",
        "  fix:      convert the model to one of these, for example Q8_0 or F16"]
