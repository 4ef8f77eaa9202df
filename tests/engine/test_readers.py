"""A buffer lists what can read it: nodes, tensors, arrays. One too many costs a copy, one too few changes a value."""

from __future__ import annotations

import ast
import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import glassgrad
from glassgrad import Tensor
from glassgrad.compiler.graph.node import WeakNodeDict
from glassgrad.compiler.graph.uop import UOp, const
from glassgrad.engine.buffer import Buffer, live_buffers
from glassgrad.engine.registry import registry

PACKAGE = Path(glassgrad.__file__).parent


def made(rows: int = 4) -> tuple[Tensor, Buffer]:
    x = Tensor(np.arange(rows * 3, dtype="float32").reshape(rows, 3)).realize()
    return x, x.uop.arg


def live_readers(buffer: Buffer) -> list[object]:
    """What a buffer lists as its readers and is alive, each once."""
    alive = [thing for thing in (reference() for reference in buffer.readers) if thing is not None]
    return list({id(thing): thing for thing in alive}.values())


READERS = {
    "a computed value": lambda x: x + 1, "a view": lambda x: x[1:], "another tensor of the same node": Tensor,
    "a tensor that only has the node": lambda x: x.contiguous(), "detached": lambda x: x.detach(),
    "a shown array": lambda x: np.asarray(x), "a memoryview": lambda x: x.data(),
    "a DLPack array": lambda x: np.from_dlpack(x), "a list": lambda x: [x.T],
    "a shown row": lambda x: np.asarray(x[0]), "memory of a row": lambda x: x[0].data(),
    "a part of the memory": lambda x: Buffer.from_host(x.uop.arg, x.uop.arg.address, (3,), x.dtype, x.device),
}


SHARES_MEMORY = pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[SHARES_MEMORY] * (name in ("a shown array", "a memoryview", "a DLPack array",
                                                                 "a shown row", "memory of a row")))
    for name in READERS])
def test_a_reader_is_listed_while_it_lives(name):
    x, buffer = made()
    assert len(live_readers(buffer)) == 1 and buffer.is_free(x)
    reader = READERS[name](x)
    assert not buffer.is_free(x)
    del reader
    gc.collect()
    assert buffer.is_free(x)


def test_a_tensor_with_another_value_reads_the_buffer_no_more():
    x, buffer = made()
    x.replace(Tensor([1.0]))
    assert buffer.is_free()


def test_a_computed_tensor_that_is_given_a_buffer_reads_it():
    x, y = made(1)[0], Tensor([[1.0, 2.0, 3.0]]) * 2
    y[...] = x
    x[0, 0] = 7.0
    x.realize()
    assert y.tolist() == [[0.0, 1.0, 2.0]] and x.tolist() == [[7.0, 1.0, 2.0]]


def test_a_remembered_value_is_read_by_the_node_it_is_the_value_of():
    x = Tensor([1.0, 2.0]).realize()
    y = x * 3
    y.numpy()
    value = registry.values.get(y.uop)
    assert any(reader is y.uop for reader in live_readers(value.base.arg))
    buffer = value.base.arg
    del y, value
    assert buffer.is_free()


def test_dead_references_are_dropped_and_the_old_list_shows_a_change():
    x, buffer = made()
    before = buffer.readers
    for i in range(1000):
        x * float(i)
    assert len(buffer.readers) < 100
    assert buffer.readers is not before, "replaced, not shortened: code that compares lengths must see a change"
    length, listed = len(buffer.readers), buffer.readers
    y = x * 0.5
    assert len(listed) != length or buffer.readers is not listed
    assert not buffer.is_free(x)
    del y


def test_many_live_readers_are_all_kept():
    x, buffer = made()
    results = [x * float(i) for i in range(500)]
    assert len(live_readers(buffer)) >= len(results)
    x[0] = 7.0
    x.realize()
    assert [r.numpy()[0, 1] for r in results[:5]] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_readers_that_other_threads_make_are_listed():
    x, buffer = made()
    kept: list[list[Tensor]] = [[] for _ in range(4)]

    def work(row: list[Tensor], number: int) -> None:
        for i in range(200):
            row.append(x * float(number * 1000 + i + 1))

    threads = [threading.Thread(target=work, args=(row, number)) for number, row in enumerate(kept)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    alive = {id(node) for node in live_readers(buffer)}
    assert all(id(t.uop) in alive for row in kept for t in row)


def test_a_write_in_place_raises_the_version_of_the_contents():
    x, buffer = made()
    x[1] = 5.0
    x.realize()
    assert x.uop.arg is buffer and buffer.version == 1


def test_memory_that_no_tensor_was_given_is_not_written_in_place():
    """A node that a program holds by itself is not listed, so its memory must be left alone."""
    from glassgrad.compiler.graph import ops as o
    from glassgrad.compiler.graph.dtype import dtypes
    from glassgrad.engine.realize import realize
    buffer = Buffer((4,), dtypes.float32, "CPU")
    buffer.copy_in(np.arange(4, dtype="float32"))
    leaf = UOp(o.BUFFER, dtypes.float32, (), buffer)
    inside = const(True).broadcast((1,)).pad(((0, 3),))
    new = UOp(o.WHERE, dtypes.float32, (inside, const(9.0).broadcast((1,)).pad(((0, 3),)), leaf))
    found, = realize([new], "CPU")
    assert found.base is not leaf and list(np.frombuffer(buffer.copy_out(), "float32")) == [0, 1, 2, 3]


def test_live_buffers_are_those_that_own_memory():
    gc.collect()
    before = len(live_buffers())
    x, buffer = made()
    part = Buffer.from_host(buffer, buffer.address, (3,), x.dtype, x.device)
    assert len(live_buffers()) == before + 1 and any(b is buffer for b in live_buffers())
    del x, buffer, part
    gc.collect()
    assert len(live_buffers()) == before


# -- the registry --------------------------------------------------------------------------------------------
def test_facts_go_with_their_nodes():
    table: WeakNodeDict[int] = WeakNodeDict()
    nodes = [const(2.0) * float(i + 3) for i in range(50)]
    for i, node in enumerate(nodes):
        table.set(node, i)
        table.set(node, i + 1)
    assert len(table) == 50 and [fact for _, fact in table.among(nodes[:3])] == [1, 2, 3]
    del nodes[10:], node
    assert len(table) == 10 and table.get(nodes[4]) == 5
    table.pop(nodes[4])
    assert nodes[4] not in table and len(table) == 9


def test_nothing_is_kept_alive_by_the_registry():
    gc.collect()
    tables = [t for t in vars(registry).values() if isinstance(t, WeakNodeDict)]
    before = [len(t) for t in tables]
    buffers = len(live_buffers())
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = (x * x).sum().backward()
    y.item()
    x[0] = 3.0
    x.realize()
    x.assign(x * 2)
    assert [len(t) for t in tables] != before
    del x, y
    gc.collect()
    assert [len(t) for t in tables] == before and len(live_buffers()) == buffers


def test_nodes_have_no_place_for_facts_of_others():
    node = const(2.0) * 3.0
    with pytest.raises(AttributeError):
        node.anything = 1


# -- the rules of the house ----------------------------------------------------------------------------------
PRIVATE = {"getrefcount", "get_referrers", "get_objects", "_remove_dead_weakref"}


FOR_MESSAGES = {("engine/buffer.py", "get_objects")}      # names the largest buffers when memory is full; owns nothing


def test_ownership_uses_no_reference_counts():
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in PRIVATE and (path.relative_to(PACKAGE).as_posix(), name) not in FOR_MESSAGES:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
    assert not found
