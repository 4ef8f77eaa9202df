"""Launch compiled kernels on torch's memory through libcuda."""

from __future__ import annotations

import ctypes
import os

import torch
from attention import Attention
from build import BUILD
from mma_sync import MmaSync
from simple import Join, Pad, VectorMatrix
from wgmma import Wgmma

CUDA = ctypes.CDLL("libcuda.so.1")
KIND = {torch.int8: 0, torch.float16: 6, torch.bfloat16: 9, torch.float32: 7}        # CUtensorMapDataType
UNUSED = ctypes.create_string_buffer(192)
FUNCTIONS: dict[str, ctypes.c_void_p] = {}


def checked(code: int, what: str) -> None:
    if code:
        text = ctypes.c_char_p()
        CUDA.cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {text.value.decode() if text.value else code}")


def function(c) -> ctypes.c_void_p:
    if c.name not in FUNCTIONS:
        with open(os.path.join(BUILD, c.name + ".cubin"), "rb") as f:
            image = f.read() + b"\0"          # it may be PTX, a string
        module, out = ctypes.c_void_p(), ctypes.c_void_p()
        checked(CUDA.cuModuleLoadData(ctypes.byref(module), image), f"load {c.name}")
        checked(CUDA.cuModuleGetFunction(ctypes.byref(out), module, b"kernel"), "function")
        if c.shared_bytes > 48 * 1024:
            checked(CUDA.cuFuncSetAttribute(out, 8, c.shared_bytes), f"{c.shared_bytes} bytes of shared memory")
        FUNCTIONS[c.name] = out
    return FUNCTIONS[c.name]


PROMOTION = 2          # bytes that the copy engine asks of the L2 at once: 0 none, 1 64, 2 128, 3 256


def tensor_map(t: torch.Tensor, dims, strides, box, swizzle: int = 3):
    """A box of a tensor: dims and box innermost first, in elements; strides of all but the innermost, in elements."""
    size = t.element_size()
    raw = ctypes.create_string_buffer(128 + 64)
    at = (ctypes.addressof(raw) + 63) & ~63
    n = len(dims)
    checked(CUDA.cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), KIND[t.dtype], n, ctypes.c_void_p(t.data_ptr()), (ctypes.c_uint64 * n)(*dims),
        (ctypes.c_uint64 * (n - 1))(*(s * size for s in strides)), (ctypes.c_uint32 * n)(*box),
        (ctypes.c_uint32 * n)(*([1] * n)), 0, swizzle, PROMOTION, 0), f"tensor map {dims} {strides} {box}")
    return t, at, raw          # the tensor too: it must live as long as the map


def launcher(c, grid, arguments):
    """A function that launches; arguments are ints, floats (32 bits), tensors and tensor maps."""
    keep, pointers = [], []
    for a in arguments:
        if isinstance(a, tuple):
            keep.append(a)
            pointers.append(a[1])
            continue
        cell = ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else \
            ctypes.c_float(a) if isinstance(a, float) else ctypes.c_int(a)
        keep.append(cell)
        keep.append(a)
        pointers.append(ctypes.addressof(cell))
    packed = (ctypes.c_void_p * len(pointers))(*pointers)
    f, (x, y, z) = function(c), grid

    def launch(_keep=keep):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        checked(CUDA.cuLaunchKernel(f, x, y, z, c.threads, 1, 1, c.shared_bytes, stream, packed, None), c.name)
    return launch


def ceil(a: int, b: int) -> int:
    return -(-a // b)


SMS = torch.cuda.get_device_properties(0).multi_processor_count if torch.cuda.is_available() else 132


def wgmma(c: Wgmma, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, parts: int = 1, k: int = 0):
    """a [z, M, K] (or [z, K, M]), b [z, K, N] (or [z, N, K]), out [z, M, N]; with parts, z is 1 and out [parts, M, N].
    k: where rows of a are padded, the real K."""
    z, m, n = out.shape
    pitch_a, pitch_b = a.shape[2], b.shape[2]
    whole = a.shape[2] if c.a == "mk" else a.shape[1]
    depth = whole // parts
    assert depth * parts == whole
    boxes = c.boxes()
    step_a = (depth if c.a == "mk" else depth * pitch_a) if parts > 1 else a.shape[1] * pitch_a
    step_b = (depth if c.b == "nk" else depth * pitch_b) if parts > 1 else b.shape[1] * pitch_b
    dims_a = (depth, m, z) if c.a == "mk" else (m, depth, z)
    deep_b = depth if parts > 1 else (b.shape[2] if c.b == "nk" else b.shape[1])
    dims_b = (deep_b, n, z) if c.b == "nk" else (n, deep_b, z)
    if c.by_threads:
        map_a = map_b = map_c = (a, ctypes.addressof(UNUSED), UNUSED)
        tiles_m, tiles_n = ceil(m, c.bm), ceil(n, c.bn)
        tiles = tiles_m * tiles_n * z
        return launcher(c, (tiles, 1, 1), (map_a, map_b, map_c, a, b, out, m, n, depth, tiles_m, tiles_n, tiles))
    if c.plain:                 # no maps are used, and any alignment will do
        map_a = map_b = map_c = (a, ctypes.addressof(UNUSED), UNUSED)
        tiles_m, tiles_n = ceil(m, c.bm), ceil(n, c.bn)
        tiles = tiles_m * tiles_n * z
        return launcher(c, (min(tiles, SMS * c.blocks_per_sm), 1, 1), (map_a, map_b, map_c, a, b, out, m, n, depth, tiles_m, tiles_n, tiles))
    map_a = tensor_map(a, dims_a, (pitch_a, step_a), (*boxes["a"], 1))
    map_b = tensor_map(b, dims_b, (pitch_b, step_b), (*boxes["b"], 1))
    map_c = tensor_map(out, (n, m, z), (n, m * n), (*boxes["c"], 1)) if c.store == "box" else map_a
    tiles_m, tiles_n = ceil(m, c.bm * c.cluster), ceil(n, c.bn)
    tiles = tiles_m * tiles_n * z
    blocks = tiles * c.cluster * c.split
    assert c.split == 1 or depth >= 64 * c.split, "every part needs a step"
    if c.persistent:
        blocks = min(blocks, SMS * c.blocks_per_sm // c.cluster * c.cluster)
    return launcher(c, (blocks, 1, 1), (map_a, map_b, map_c, a, b, out, m, n, k or depth, tiles_m, tiles_n, tiles))


def mma_sync(c: MmaSync, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor):
    z, m, n = out.shape
    k = a.shape[2]
    tiles_m, tiles_n = ceil(m, c.bm), ceil(n, c.bn)
    return launcher(c, (tiles_m * tiles_n * z, 1, 1), (a, b, out, m, n, k, tiles_m, tiles_n))


def split_wgmma(c: Wgmma, parts: int, a, b, out, work):
    """K in parts: partial sums in float32, then their sum."""
    join = Join(parts, c.dtype)
    first = wgmma(c, a, b, work, parts)
    quads = out.numel() // 4
    second = launcher(join, (ceil(quads, 256), 1, 1), (work, out, quads))

    def launch():
        first()
        second()
    return launch


def padded(t: torch.Tensor, room: torch.Tensor):
    """t [1, rows, columns] into room, whose rows are longer."""
    words, rows = room.shape[2] // 2, t.shape[1]
    return launcher(Pad(), (ceil(words, 256), ceil(rows, 8), 1), (t, room, rows, t.shape[2], words))


def vector_matrix(c: VectorMatrix, x, b, y, partial, counts):
    k, n = b.shape
    return launcher(c, (ceil(n, 256), c.parts, 1), (x, b, y, partial, counts, k, n))


def clusters_at_once(c: Wgmma) -> int:
    """How many clusters of a kernel the device holds."""
    class Attribute(ctypes.Structure):
        _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]

    class Config(ctypes.Structure):
        _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                    ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]
    together = c.cluster * c.split
    attribute = Attribute(4, 0, (ctypes.c_uint * 16)(together, 1, 1))
    config = Config((together * 64, 1, 1), (c.threads, 1, 1), c.shared_bytes, None, ctypes.addressof(attribute), 1)
    found = ctypes.c_int()
    checked(CUDA.cuOccupancyMaxActiveClusters(ctypes.byref(found), function(c), ctypes.byref(config)), "clusters")
    return found.value


def attention(c: Attention, q, k, v, o, scale: float):
    heads, length, _ = q.shape
    rows = 64 * c.consumers

    def of(t, box):
        return tensor_map(t, (128, length, heads), (128, length * 128), (64, box, 1))
    return launcher(c, (ceil(length, rows), heads, 1),
                    (of(q, rows), of(k, c.kv), of(v, c.kv), of(o, 64), scale * 1.4426950408889634, length))
