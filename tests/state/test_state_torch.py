"""Files of PyTorch, read without running anything: the real ResNet-20, what torch.save writes, what attackers write."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import time
import tracemalloc
import zipfile
from collections import Counter, OrderedDict, deque

import numpy as np
import pytest
from model_files import model_file

from glassgrad import FormatError, InputError, Tensor, dtypes
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import dtype_by_name
from glassgrad.nn.state import load_state_dict, safe_save, torch_load
from glassgrad.nn.state.formats.byte_source import Source
from glassgrad.nn.state.formats.pickle_reader import PickleReader
from glassgrad.nn.state.formats.torch_objects import TABLE, StorageKind, StorageReference
from glassgrad.tensor import realize_and_read as running

MAGIC = 0x1950A86A20F9469CFC6C


def saved(torch, value: object, old: bool = False, **options: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not old, **options)
    return file.getvalue()


def archive(pickled: bytes, records: dict[str, bytes] | None = None, **options: int) -> bytes:
    """A zip archive as PyTorch would write it, with any pickle in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as written:
        for name, data in {"archive/data.pkl": pickled, "archive/byteorder": b"little", **(records or {})}.items():
            written.writestr(name, data)
    return file.getvalue()


def old_file(pickled: bytes, keys: object = (), data: bytes = b"") -> bytes:
    facts = (MAGIC, 1001, {"protocol_version": 1001, "little_endian": True})
    return b"".join(pickle.dumps(fact, 2) for fact in facts) + pickled + pickle.dumps(list(keys), 2) + data   # type: ignore


def same(mine: Tensor, theirs) -> None:
    """Equal in shape and type, and bit for bit."""
    assert mine.shape == tuple(theirs.shape) and mine.dtype is dtype_by_name(str(theirs.dtype).removeprefix("torch."))
    data = theirs.detach().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    assert bytes(running.bytes_of(mine.uop, mine.device)) == data.tobytes()


# ---- real and true files


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numbers_and_arrays_of_numpy_and_small_containers(old, protocol):
    torch = pytest.importorskip("torch")
    square = np.arange(6, dtype="int16").reshape(2, 3)
    value = {"loss": np.float64(0.1), "half": np.float16(1.5), "epoch": np.int64(-3), "byte": np.uint8(200),
             "best": np.bool_(True), "frozen": frozenset({1, "a"}), "bytes": bytearray(b"a\xffc"), "number": 1 - 2j,
             "counts": Counter("aab"), "last": deque([1, 2], maxlen=5), "state": np.random.RandomState(3).get_state()}
    found = torch_load(saved(torch, value, old, pickle_protocol=protocol))
    assert {k: v for k, v in found.items() if k not in ("state", "last")} == \
        {k: v for k, v in value.items() if k not in ("state", "last")}
    assert found["last"] == [1, 2] and all(type(found[k]) is kind for k, kind in {
        "loss": float, "half": float, "epoch": int, "byte": int, "best": bool, "bytes": bytearray}.items())
    assert found["state"][0] == "MT19937" and found["state"][1].tolist() == value["state"][1].tolist()
    arrays = [square, square.T, np.asfortranarray(square), square[:, ::2], np.array(2.5), np.zeros((0, 3), "float32"),
              np.array([True, False]), np.arange(3, dtype="uint64")]
    again = torch_load(saved(torch, [*arrays, arrays[0]], old, pickle_protocol=protocol))
    for mine, theirs in zip(again, [*arrays, arrays[0]]):
        assert mine.shape == theirs.shape and mine.dtype.name == theirs.dtype.name and (mine.numpy() == theirs).all()
    assert again[0] is again[-1], "one array stays one"


@pytest.mark.parametrize("value, why", [
    (np.array([object()]), "no plain number: 'O8'"), (np.array(["text"]), "no plain number: 'U4'"),
    (np.arange(3, dtype=">f4"), "another byte order"), (np.zeros(2, "complex64"), "no plain number: 'c8'"),
    (np.array(["2020"], "datetime64[Y]"), "no plain number: 'M8'")])
def test_arrays_that_are_no_plain_numbers_are_refused(value, why):
    torch = pytest.importorskip("torch")
    for old in (False, True):
        with pytest.raises(FormatError, match="the pickle in it is damaged") as problem:
            torch_load(saved(torch, {"a": value}, old))
        assert why in str(problem.value)


def test_arrays_go_to_the_device_that_was_asked_for():
    torch = pytest.importorskip("torch")
    found = torch_load(saved(torch, [np.arange(3.0)]), device="PYTHON")[0]
    assert found.device == "PYTHON" and found.tolist() == [0.0, 1.0, 2.0]


DTYPE = pickle.dumps(np.dtype("f8"), 2)[2:-1]
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85U\1btR"
DATA = b"c_codecs\nencode\n(X\x08\0\0\0" + b"a" * 8 + b"X\6\0\0\0latin1tR"


@pytest.mark.parametrize("pickled", [
    b"cnumpy\nndarray\n)R", ARRAY + b"Nb", ARRAY + b"(K\1K\1\x85" + DTYPE + b"\x89tb",
    ARRAY + b"(K\1K\2\x85" + DTYPE + b"\x89" + DATA + b"tb", ARRAY + b"(K\1K\1\x85N\x89" + DATA + b"tb",
    ARRAY + b"(K\1J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86" + DTYPE + b"\x89" + DATA + b"tb",
    ARRAY + b"(K\1K\0\x8a\x09" + bytes(8) + b"\x7f\x86" + DTYPE + b"\x89X\0\0\0\0tb",
    b"cnumpy.core.multiarray\nscalar\n" + DTYPE + b"C\1a\x86R", b"cbuiltins\nbytes\nK\1\x85R",
    b"cnumpy.core.multiarray\nscalar\n" + DTYPE + b"\x85R",
    b"cnumpy._core.numeric\n_frombuffer\n(" + DATA + DTYPE + b"K\1\x85X\1\0\0\0AtR",
    b"cnumpy\ndtype\n)R", b"cnumpy\ndtype\nX\2\0\0\0f8\x85RNb",
    b"cbuiltins\ncomplex\nK\1K\2\x86R", b"cbuiltins\nfrozenset\nK\1\x85R", b"cbuiltins\nbytearray\nK\1\x85R",
    b"ccollections\nCounter\nK\1\x85R", b"ccollections\ndeque\nK\1\x85R"])
def test_wrong_descriptions_of_arrays_are_refused(pickled):
    for file in (archive(b"\x80\2" + pickled + b"."), old_file(b"\x80\2" + pickled + b".")):
        with pytest.raises(FormatError, match="the pickle in it is damaged"):
            torch_load(file)


def test_open_files_and_views_of_memory_are_read(tmp_path):
    data = archive(pickle.dumps({"a": 1}, 2))
    (tmp_path / "x.pt").write_bytes(b"before" + data)
    with open(tmp_path / "x.pt", "rb") as file:
        file.seek(6)
        assert torch_load(file) == torch_load(io.BytesIO(data)) == torch_load(memoryview(data)) == {"a": 1}
    with open(tmp_path / "x.pt", encoding="latin-1") as file, pytest.raises(InputError) as problem:
        torch_load(file)
    assert str(problem.value).partition("\n  at: ")[0] == """\
a model is read from a file of bytes
  given:    a file that is opened as text
  expected: bytes
  fix:      open it with open(path, "rb"), or give the path"""


def test_the_real_resnet_is_read_as_pytorch_reads_it(torch):
    path = model_file("torch/cifar10-resnet20-12fca82f.th")
    mine, theirs = torch_load(path), torch.load(path, map_location="cpu", weights_only=True)
    assert list(mine) == ["best_prec1", "state_dict"] and mine["best_prec1"] == theirs["best_prec1"]
    assert list(mine["state_dict"]) == list(theirs["state_dict"]) and len(mine["state_dict"]) > 90
    for name, tensor in theirs["state_dict"].items():
        same(mine["state_dict"][name], tensor)
    assert mine["state_dict"]["module.conv1.weight"].shape == (16, 3, 3, 3)


@pytest.mark.parametrize("old", [False, True])
def test_types_views_and_plain_values(torch, old):
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {
        "plain": base, "shared": base, "part": base[1], "moved": base.transpose(0, 2), "steps": base[:, ::2, 1:],
        "expanded": torch.arange(3.0).reshape(3, 1).expand(3, 5), "one": torch.tensor(3.5), "none": torch.zeros(0, 3),
        "spread": torch.tensor(2.0).expand(2, 2), "overlapping": torch.arange(6.0).as_strided((3, 3), (1, 1), 1),
        "parameter": torch.nn.Parameter(base + 1), "odd": torch.arange(7, dtype=torch.uint8),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), "narrow": base.narrow(2, 1, 2),
    }
    kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
             torch.float32, torch.float64]
    if not old:
        kinds += [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
                  torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
    tensors |= {str(kind): torch.tensor([0, 1, 3]).to(kind) for kind in kinds}
    rest = {"step": 7, "lr": 0.1, "flags": [True, None, "text", (1, 2)], "large": 2 ** 70, "size": base.shape,
            "set": {1, 2}, "bytes": b"\xff\x00", 5: {"nested": OrderedDict(a=-1)}, "inf": float("inf")}
    found = torch_load(saved(torch, {**tensors, **rest}, old))
    for name, tensor in tensors.items():
        same(found[name], tensor)
    assert {name: found[name] for name in rest} == {**rest, "size": (2, 3, 4)}
    assert found["plain"].uop.base is found["part"].uop.base is found["moved"].uop.base       # one storage, one buffer
    assert isinstance(found["step"], int) and found["flags"][3] == (1, 2)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickles(torch, protocol):
    plain = {"b": [1, 2.5, "x" * 300, b"bytes", {3}], "c": 1 << 2100}
    if protocol >= 4:
        plain["d"] = frozenset({4})
    if protocol >= 5:
        plain["e"] = bytearray(b"z")
    found = torch_load(saved(torch, {"a": torch.ones(2), **plain}, pickle_protocol=protocol))
    assert found.pop("a").tolist() == [1.0, 1.0] and found == plain


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_storages_are_used_where_they_lie(torch, tmp_path):
    torch.save({"w": torch.randn(100, 100)}, tmp_path / "x.pt")
    assert torch_load(tmp_path / "x.pt")["w"].uop.base.op is o.BUFFER
    assert isinstance(torch_load(tmp_path / "x.pt")["w"].uop.base.arg.owner, Source)


def test_a_model_and_its_optimizer(torch):
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    optimizer = torch.optim.Adam(theirs.parameters())
    theirs(torch.randn(5, 6)).sum().backward()
    optimizer.step()
    found = torch_load(saved(torch, {"model": theirs.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}))
    for name, tensor in theirs.state_dict().items():
        same(found["model"][name], tensor)
    for i, state in optimizer.state_dict()["state"].items():
        for name, tensor in state.items():
            same(found["optimizer"]["state"][i][name], tensor)
    assert found["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)
    mine = {name: Tensor.zeros(*t.shape, dtype=t.dtype) for name, t in found["model"].items()}
    load_state_dict(mine, found["model"])
    for name, tensor in theirs.state_dict().items():
        same(mine[name], tensor)


def test_what_is_read_can_be_saved_and_read_by_pytorch(torch, tmp_path):
    reference = pytest.importorskip("safetensors.torch", reason="the library safetensors is not installed")
    state = torch.nn.Linear(3, 2).state_dict() | {"view": torch.arange(6.0).reshape(2, 3).T}
    safe_save(torch_load(saved(torch, state, old=True)), tmp_path / "x.safetensors")
    for name, tensor in reference.load_file(tmp_path / "x.safetensors").items():
        assert torch.equal(tensor, state[name])


def test_the_reader_agrees_with_python_on_plain_pickles(rng):
    value = {"a": [1, -1, 255, 65536, -2 ** 31, 2 ** 40, -2 ** 2100, 0.5, float("inf"), True, False, None, "ü",
                   "x" * 70000, b"", b"y" * 300, (), (1,), (1, 2), (1, 2, 3), tuple(range(10)), {}, {1: 2}, [[]],
                   set(), {1, 2}, frozenset({3})]}
    for protocol in (4, 5):
        data = pickle.dumps(value, protocol)
        assert PickleReader(Source(data), 0, len(data), {}).value() == value
    for protocol in (0, 1, 2, 3):
        plain = {"a": [x for x in value["a"] if not isinstance(x, (bytes, set, frozenset))]}
        data = pickle.dumps(plain, protocol)
        assert PickleReader(Source(data), 0, len(data), {}).value() == plain


# ---- nothing is run


class Attack:
    def __reduce__(self):
        return eval, ("__import__('os').environ.update(WAS_RUN='1')",)


class Model:
    def __init__(self): self.weight = 1


@pytest.mark.parametrize("old", [False, True])
def test_code_is_named_and_not_run(torch, old):
    with pytest.raises(FormatError) as problem:
        torch_load(saved(torch, {"w": torch.ones(2), "evil": Attack()}, old))
    assert "WAS_RUN" not in os.environ
    assert str(problem.value).splitlines()[:4] == [
        "these bytes: it holds a Python object that is not known to be data, and was not run",
        f"  given:    {problem.value.given}", "  expected: tensors, numbers, texts, lists, dicts and sets",
        "  fix:      if you trust the file, load it with PyTorch, and save only its model.state_dict()"]
    assert problem.value.given == "__builtin__.eval"
    with pytest.raises(FormatError, match="torch.nn.modules.linear.Linear"):
        torch_load(saved(torch, torch.nn.Linear(2, 2), old))
    with pytest.raises(FormatError, match="test_state_torch.Model"):
        torch_load(saved(torch, Model(), old))


@pytest.mark.parametrize("call", [
    b"cos\nsystem\n(X\x04\0\0\0truetR.", b"cbuiltins\neval\n(X\x01\0\0\x001tR.", b"(ios\nsystem\n.",
    b"cbuiltins\nexec\n.", b"\x8c\x02os\x8c\x06system\x93.", b"\x82\x01.",
    b"ctorch._utils\n_rebuild_tensor_v2\nq\0(h\0tR.", b"ctorch\nfloat32\n)R.",
    b"ccollections\nOrderedDict\n)R(X\x09\0\0\0__class__Ndbcos\nsystem\n.", b"ctorch\nFloatStorage\n)\x81.",
    b"K\x01)R."])
def test_no_way_to_a_call(call):
    for file in (archive(b"\x80\x02" + call), old_file(b"\x80\x02" + call)):
        with pytest.raises(FormatError):
            torch_load(file)


# ---- malformed and hostile


def tensor_pickle(size: tuple, stride: tuple, offset: int = 0, count: int = 4, kind: bytes = b"Float") -> bytes:
    """{"w": tensor} with any numbers in it, written by hand as protocol 2."""
    def plain(value: object) -> bytes:
        return pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b"").replace(b"q\x01", b"")
    ints = lambda values: b"(" + b"".join(plain(v) for v in values) + b"t"
    text = lambda t: b"X" + struct.pack("<I", len(t)) + t.encode()
    kind = b"ctorch\n" + kind + b"Storage\n"
    storage = b"(" + text("storage") + kind + text("0") + text("cpu") + plain(count) + b"tQ"
    return b"\x80\x02}" + text("w") + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + plain(offset) + ints(size) \
        + ints(stride) + b"\x89}tRs."


def test_a_pickle_written_by_hand_is_read():
    data = np.arange(4, dtype=np.float32).tobytes()
    new = archive(tensor_pickle((2, 2), (1, 2)), {"archive/data/0": data})
    assert torch_load(new)["w"].tolist() == [[0, 2], [1, 3]]
    old = old_file(tensor_pickle((2,), (1,), 1), ["0"], struct.pack("<q", 4) + data)
    assert torch_load(old)["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("size, stride, offset", [
    ((5,), (1,), 0), ((4,), (1,), 1), ((2, 3), (3, 1), 0), ((1,), (1,), 4), ((2,), (-1,), 1), ((-1,), (1,), 0),
    ((2,), (1,), -1), ((2, 2), (2,), 0), ((1 << 62,), (1,), 0), ((1 << 40, 1 << 40), (0, 0), 1 << 50), ((0,), (1,), 9),
    ((True,), (1,), 0), ((1.0,), (1,), 0), ((1,) * 65, (1,) * 65, 0)])
def test_views_beyond_their_storage_are_refused(size, stride, offset):
    data = bytes(16)
    for file in (archive(tensor_pickle(size, stride, offset), {"archive/data/0": data}),
                 old_file(tensor_pickle(size, stride, offset), ["0"], struct.pack("<q", 4) + data)):
        with pytest.raises(FormatError):
            torch_load(file)


@pytest.mark.parametrize("count, kind", [
    (5, b"Float"), (3, b"Float"), (4, b"Double"), (1 << 61, b"Float"), (-4, b"Float"),
    (1 << 70, b"Float"), (4, b"ComplexFloat"), (4, b"QInt8")])
def test_storages_that_are_not_whole_are_refused(count, kind):
    with pytest.raises(FormatError):
        torch_load(archive(tensor_pickle((1,), (1,), 0, count, kind=kind), {"archive/data/0": bytes(16)}))
    with pytest.raises(FormatError):
        torch_load(old_file(tensor_pickle((1,), (1,), 0, count, kind=kind), ["0"], struct.pack("<q", 4) + bytes(16)))


def overlapping() -> bytes:
    """Two records over the same bytes: many of them would be a bomb."""
    file = bytearray(archive(tensor_pickle((4,), (1,)), {"archive/data/0": bytes(16), "archive/data/1": bytes(16)}))
    where = [i for i in range(len(file)) if file[i:i + 4] == b"PK\1\2"]
    file[where[3] + 42:where[3] + 46] = file[where[2] + 42:where[2] + 46]
    return bytes(file)


GOOD = archive(tensor_pickle((4,), (1,)), {"archive/data/0": bytes(16)})
BAD = {
    "nothing": b"", "text": b"hello world" * 10, "a tar archive": bytes(257) + b"ustar" + bytes(300),
    "cut zip": GOOD[:-30], "only the beginning": GOOD[:50],
    "zip without pickle": archive(b"").replace(b"data.pkl", b"data.pxl"),
    "packed": archive(b"\x80\x02N.", compression=zipfile.ZIP_DEFLATED),
    "program": archive(b"\x80\x02N.", {"archive/constants.pkl": b"x", "archive/code/a.py": b"import os"}),
    "two pickles": archive(b"\x80\x02N.", {"other/data.pkl": b"\x80\x02N."}),
    "storage missing": archive(tensor_pickle((4,), (1,))), "overlapping records": overlapping(),
    "big-endian": GOOD.replace(b"little", b"big   "), "empty pickle": archive(b""), "no end": archive(b"\x80\x02}"),
    "old: another protocol": b"".join(pickle.dumps(x, 2) for x in (MAGIC, 1002, {}, {}, [])),
    "old: big-endian": b"".join(pickle.dumps(x, 2) for x in (MAGIC, 1001, {"little_endian": False}, {}, [])),
    "old: no storages": old_file(tensor_pickle((4,), (1,)), []),
    "old: other storages": old_file(tensor_pickle((4,), (1,)), ["1"], struct.pack("<q", 4) + bytes(16)),
    "old: cut": old_file(tensor_pickle((4,), (1,)), ["0"], struct.pack("<q", 4) + bytes(15)),
    "old: no storage size": old_file(tensor_pickle((4,), (1,)), ["0"]),
    "old: huge storage": old_file(tensor_pickle((4,), (1,), 0, 1 << 50), ["0"], struct.pack("<q", 1 << 50) + bytes(16)),
    **{f"pickle {body!r}": archive(b"\x80\x02" + body) for body in (
        b"a.", b"]K\x01s.", b"}K\x01u.", b"t.", b"h\x05.", b"R.", b"NNR.", b"0.", b"(.", b"\xff.", b"b.", b"]]s.",
        b"}]Ns.", b"}}Ns.", b"X\xff\xff\xff\x7fabc.", b"\x8e" + b"\xff" * 8 + b".", b"\x8b\xff\xff\xff\xff.", b"I1x\n.",
        b"L" + b"9" * 5000 + b"\n.", b"\x80\x09.", b"Q.", b"NQ.", b"X\x01\0\0\0\xff.", b"2.", b"F1.x\n.",
        b"ccollections\nOrderedDict\nK\x01\x85R.",
        b"\x81.", b"ctorch\ndevice\n)R.", b"ctorch\nSize\nK\x01\x85R.",
        b"c_codecs\nencode\nX\x01\0\0\0aX\x03\0\0\0hex\x86R.")},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name):
    with pytest.raises(FormatError) as problem:
        torch_load(BAD[name])
    assert problem.value.given and problem.value.expected and problem.value.fix and len(str(problem.value)) < 1500


BOMBS = {
    "deep tuples as a key": b"}" + b")" + b"\x85" * 200_000 + b"Ns.",
    "deep lists": b"]" * 100_000 + b"a" * 99_999 + b".",
    "a dict of itself": b"}q\x00(X\x01\0\0\0ah\x00u.",
    "many sets": b"(" + b"\x8f" * 50_000 + b"t.",
    "copies of a list": b"](" + b"N" * 10_000 + b"eq\x00(" + b"c__builtin__\nset\nh\x00\x85R" * 1100 + b"t.",
    "copies of bytes": b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"X\x06\0\0\0latin1\x86q\x00"
                       + b"c_codecs\nencode\nq\x01(" + b"h\x01h\x00R" * 3000 + b"t.",
    "keys that collide": b"}(" + b"".join(b"\x8a\x0c" + (k * ((1 << 61) - 1)).to_bytes(12, "little") + b"N"
                                           for k in range(1, 3000)) + b"u.",
    "a long number in digits": b"I" + b"1" * 200_000 + b"\n.",
    "huge frame": b"\x95" + b"\xff" * 8 + b"N.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_nothing(name):
    file = archive(b"\x80\x04" + BOMBS[name])
    small = len(file) < 150_000                             # counting memory makes the others slow
    if small:
        tracemalloc.start()
    begin = time.process_time()
    try:
        torch_load(file)
    except FormatError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert time.process_time() - begin < 10 and peak < 200e6


def test_a_small_file_cannot_make_many_tensors():
    good = tensor_pickle((4,), (1,))
    call = good[good.index(b"ctorch._utils"):-2]            # ... R
    function, arguments = call[:call.index(b"(") ], call[call.index(b"("):-1]
    many = b"\x80\x02" + function + b"q\x00" + arguments + b"q\x01(" + b"h\x00h\x01R" * 210_000 + b"t."
    nothing = StorageReference(StorageKind(dtypes.float32), "0", 4)
    begin = time.process_time()
    with pytest.raises(FormatError, match="too large"):
        PickleReader(Source(many), 0, len(many), TABLE, lambda reader, name: nothing).value()
    assert time.process_time() - begin < 10
