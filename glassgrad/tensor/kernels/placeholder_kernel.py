"""Build kernels that a function describes on placeholders (tinygrad's `custom_kernel`). In: a function. Out: tensors.

    def add_one(out, x):
        i = loop(x.numel())
        return out[i].store(x[i] + 1).end(i).sink()

The function is called once with a placeholder for each tensor. Elements are read and written by index; `end` closes a
loop around all steps so far, and `set` is a `store` whose memory can be read afterwards. What comes back is a loop tree
(compiler/lower/loops.py), which is written as C and run as `c_kernel` runs it: at once, and fused with nothing.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from glassgrad.base.errors import DeviceError, InputError
from glassgrad.compiler.graph import DType, Param, UOp, const, dtypes, ops as o, promote, toposort
from glassgrad.compiler.graph.index_algebra import rebuild, substitute_index
from glassgrad.compiler.graph.uop import Operators
from glassgrad.compiler.lower.expression_text import statement_text
from glassgrad.compiler.lower.loops import (LOOP, For, Kernel, Phase, Statement, Store, counter, expressions, load,
                                            local, ranges_of, rewritten, walk)
from glassgrad.compiler.lower.transcendental import expand
from glassgrad.compiler.pipeline import make_source
from glassgrad.compiler.render.c.c_source import PLAIN, plain_function, plain_launch
from glassgrad.engine.host_launches import UserCall
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.kernels.c_kernel import launch_on, load as load_c, without_gradient
from glassgrad.tensor.tensor_base import TensorBase

_OF_FLOATS = (o.DIV, o.RECIP, o.SQRT, o.EXP2, o.LOG2, o.SIN)
_names = itertools.count(1)            # numbers that loops are named by


# -- values ----------------------------------------------------------------------------------------------------------
class Value(Operators["Value"]):
    """A number inside the kernel: an expression of counters and elements, and the steps that come before it."""

    def __init__(self, node: UOp, steps: tuple[Statement, ...] = ()):
        self.node, self.steps = node, steps

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    def _wrap(self, value: Any) -> Value:
        if isinstance(value, Value):
            return value
        kind = self.dtype if isinstance(value, int) or self.dtype.is_float else dtypes.float32
        return Value(const(value, kind))

    def alu(self, op: o.Op, *others: Any) -> Value:
        """Apply an op to values, in the type that holds them all; 16-bit floats are computed in float32."""
        values = [self, *others]
        kind = functools.reduce(promote, [value.dtype for value in values])
        if op in _OF_FLOATS and not kind.is_float or kind.is_float and kind.bits < 32:
            kind = dtypes.float32
        node = UOp(op, dtypes.bool if op.compares else kind, tuple(value.node.cast(kind) for value in values))
        if op.approximate:
            node = expand(node)
        elif not any(n.op is o.LOAD for n in toposort([node])):      # computed from loop counters alone
            node = rebuild(node, node.src)
        return Value(node, _merged(*[value.steps for value in values]))

    def __le__(self, other: Any) -> Value: return (self < other) | self.eq(other)
    def __ge__(self, other: Any) -> Value: return (self > other) | self.eq(other)
    def exp(self) -> Value: return (self * math.log2(math.e)).exp2()
    def log(self) -> Value: return self.log2() * math.log(2.0)
    def reciprocal(self) -> Value: return self.recip()

    def where(self, yes: Any, no: Any) -> Value:
        """Choose one of two values by this boolean."""
        first = yes if isinstance(yes, Value) else no._wrap(yes) if isinstance(no, Value) else Value(const(float(yes)))
        other = first._wrap(no)
        kind = promote(first.dtype, other.dtype)
        node = UOp(o.WHERE, kind, (self.node.cast(dtypes.bool), first.node.cast(kind), other.node.cast(kind)))
        return Value(node, _merged(self.steps, first.steps, other.steps))

    def cast(self, dtype: DType) -> Value:
        """Return the value in another type."""
        return Value(self.node.cast(dtype), self.steps)

    def load(self) -> Value:
        """Return the value itself."""
        return self


def _merged(*several: tuple[Statement, ...]) -> tuple[Statement, ...]:
    return tuple({id(step): step for steps in several for step in steps}.values())


class Element(Value):
    """One element of a memory: a value that can be written."""

    def __init__(self, memory: Memory, position: Value):
        super().__init__(load(memory.node, position.node), _merged(memory.steps, position.steps))
        self.memory, self.position = memory, position

    def store(self, value: Any) -> Program:
        """Return the program so far, followed by a write of this element."""
        return self.set(value)

    def set(self, value: Any, end: Any = ()) -> Memory:
        """Write this element, inside loops that end here; return the memory, to be read afterwards."""
        memory, found = self.memory, self._wrap(value)
        inside = [s for s in _merged(found.steps, self.position.steps) if all(s is not b for b in memory.steps)]
        store = Store(memory.node, self.position.node, found.node.cast(self.dtype))
        closed = _closed((*inside, store), end if isinstance(end, (tuple, list)) else (end,))
        return Memory(memory.node, memory.shape, (*memory.steps, *closed), memory.offset)


# -- programs --------------------------------------------------------------------------------------------------------
def _closed(steps: tuple[Statement, ...], loops: Sequence[Value]) -> tuple[Statement, ...]:
    for closing in reversed(loops):
        steps = (For(closing.node, LOOP, list(steps)),)
    return steps


class Program:
    """Steps in order."""

    def __init__(self, steps: tuple[Statement, ...] = ()):
        self.steps = steps

    def end(self, *loops: Value) -> Program:
        """Put the program inside loops, the first of them outermost."""
        return Program(_closed(self.steps, loops))

    def sink(self, *others: Any, arg: Any = None) -> Program:
        """Return the finished kernel. (`arg` is tinygrad's; a name and a schedule have no effect here.)"""
        return group(self, *others)

    def simplify(self) -> Program:
        """Return the same program: the compiler simplifies."""
        return self


class Memory(Program):
    """A tensor's elements, or a private array of the kernel (`node`: a PARAM or a LOCAL)."""

    def __init__(self, node: UOp, shape: tuple[int, ...], steps: tuple[Statement, ...] = (),
                 offset: Value | None = None):
        super().__init__(steps)
        self.node, self.shape, self.dtype, self.offset = node, shape, node.dtype, offset
        self.ndim, self.size = len(shape), math.prod(shape)

    def numel(self) -> int:
        """Return the number of elements."""
        return self.size

    def after(self, *_: Any) -> Memory:
        """Return the same memory. (tinygrad orders reads by this; here a read comes after every earlier `set`.)"""
        return self

    def reshape(self, *shape: Any) -> Memory:
        """Return the elements under another shape."""
        sizes = list(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.size // -math.prod(sizes)
        if math.prod(sizes) != self.size:
            raise InputError("the elements do not fit this shape", given=f"{self.shape} as {tuple(sizes)}",
                             expected=f"{self.size} elements", fix="check the sizes")
        return Memory(self.node, tuple(sizes), self.steps, self.offset)

    def flatten(self) -> Memory:
        """Return the elements as a vector."""
        return self.reshape(-1)

    def __getitem__(self, index: Any) -> Any:
        """Return an element; with fewer indices than axes, the memory of a row."""
        indices = [i for i in (index if isinstance(index, tuple) else (index,)) if i != slice(None)]
        if len(indices) > self.ndim:
            raise InputError("too many indices", given=f"{len(indices)} for shape {self.shape}",
                             expected=f"at most {self.ndim}", fix="check the placeholder's shape")
        position: Any = self.offset if self.offset is not None else Value(const(0, dtypes.index))
        for axis, i in enumerate(indices):
            position = position + (i if isinstance(i, Value) else int(i)) * math.prod(self.shape[axis + 1:])
        if len(indices) == self.ndim:
            return Element(self, position)
        return Memory(self.node, self.shape[len(indices):], self.steps, position)


def loop(count: int, *_: Any, **__: Any) -> Value:
    """Start a loop over 0 .. count - 1. (The number and type of an axis are tinygrad's, and have no effect.)"""
    return Value(counter(f"i{next(_names)}", int(count)))


def group(*programs: Any) -> Program:
    """Run programs one after another."""
    return Program(_merged(*[p.steps for p in programs]))


def register(shape: Sequence[int], dtype: DType, slot: int = 0, **_: Any) -> Memory:
    """Allocate a private array of the kernel."""
    return Memory(local(f"own{slot}_{math.prod(shape)}_{dtype.name}", dtype, math.prod(shape)), tuple(shape))


# -- running ---------------------------------------------------------------------------------------------------------
def run_kernel(tensors: Sequence[TensorBase], describe: Callable[..., Any],
               grad_fxn: Callable[..., Any] | None) -> list[TensorBase]:
    """Run the kernel; return every tensor as the kernel left it."""
    device = tensors[0].device
    if not Device[device].memory.on_host:
        raise DeviceError("a kernel of your own runs on the processor", given=f"a tensor on {device}",
                          expected="a device that shares the host's memory", fix='move it: x.to("CPU")')
    params = [UOp(o.PARAM, t.dtype, (), Param(i, t.shape)) for i, t in enumerate(tensors)]
    program = describe(*[Memory(param, param.shape) for param in params])
    if not isinstance(program, Program):
        raise InputError("the function describes no kernel", given=repr(program),
                         expected="what sink() gives", fix="return out[i].store(value).end(i).sink()")
    stored = {s.memory for s in walk(program.steps) if isinstance(s, Store)}
    written = [i for i, param in enumerate(params) if param in stored]
    if not written:
        return list(tensors)
    kernel = Kernel("kernel", params, [Phase(_statements(program.steps, {}, frozenset()))], tuple(written))
    source = plain_function(kernel, make_source(kernel, PLAIN, "plain c"))
    function, own = load_c(source, "kernel"), plain_launch(kernel).shared

    def launch(addresses: Sequence[int]) -> None:
        used = list(addresses[len(written):])
        for address, number in zip(addresses, written):       # elements that are not written keep their values
            ctypes.memmove(address, used[number], params[number].size * params[number].dtype.itemsize)
            used[number] = address
        function(*map(ctypes.c_void_p, used), *[ctypes.create_string_buffer(nbytes) for nbytes in own])

    results = list(tensors)
    sizes = [(tensors[i].shape, tensors[i].dtype) for i in written]
    made = launch_on(tensors, UserCall("kernel", source, launch), sizes)
    for number, value in zip(written, made):
        if grad_fxn is None:
            value = without_gradient(value, "kernel", tensors)
        else:
            value = own_gradient(value, tuple(t.uop for t in tensors), lambda g, _, *sources: tuple(
                grad_fxn(g, SimpleNamespace(src=(None, *sources)))))
        results[number] = tensors[number]._with(value)
    return results


def _statements(steps: Sequence[Statement], names: dict[UOp, UOp], inside: frozenset[UOp]) -> list[Statement]:
    """Return the steps with loops named by their order, so that the same kernel has the same text. `inside` are the
    loops around them."""
    out: list[Statement] = []
    for step in steps:
        if isinstance(step, For):
            range_ = names.setdefault(step.range, counter(f"n{len(names)}", step.range.arg.size))
            out.append(For(range_, LOOP, _statements(step.body, names, inside | {step.range})))
            continue
        if not frozenset().union(*map(ranges_of, expressions(step))) <= inside:
            raise InputError("a loop is never ended", given=statement_text(step),
                             expected="an end for every loop whose variable is used",
                             fix="write .end(i) after the store")
        out.append(rewritten(step, lambda e: substitute_index(e, names, {})))
    return out
