"""Kernels described on placeholders, as tinygrad's `custom_kernel` has them. In: a function. Out: tensors it changed.

    def add_one(out, x):
        i = loop(x.numel())
        return out[i].store(x[i] + 1).end(i).sink()

The function is called once with a placeholder for each tensor. Elements are read and written by index; `end` closes a
loop around all that was said so far, and `set` is `store` that can be read again. What comes back is written as C and
run as `c_kernel` runs it: at once, and fused with nothing.
"""

from __future__ import annotations

import ctypes
import functools
import math
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from glassgrad.base.errors import DeviceError, DTypeError, InputError
from glassgrad.compiler.graph.dtype import DType, dtypes, promote
from glassgrad.engine.user_calls import UserCall
from glassgrad.runtime.devices import Device
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.base import TensorBase
from glassgrad.tensor.kernels.c_kernel import launch_on, load, without_gradient
from glassgrad.tensor.kernels.c_signature import C_NAMES


def _word(dtype: DType) -> str:
    if dtype not in C_NAMES:
        raise DTypeError("C has no word for this type", given=dtype.name,
                         expected=", ".join(d.name for d in C_NAMES), fix="cast the tensor first: x.float()")
    return C_NAMES[dtype]


# -- values ----------------------------------------------------------------------------------------------------------
class Value:
    """A number inside the kernel: how it is written, and which steps must come before it."""

    def __init__(self, text: str, dtype: DType, steps: tuple[Any, ...] = (), loops: frozenset[str] = frozenset()):
        self.text, self.dtype, self.steps, self.loops = text, dtype, steps, loops

    def _of(self, other: Any) -> Value:
        if isinstance(other, Value):
            return other
        kind = self.dtype if isinstance(other, int) or self.dtype.is_float else dtypes.float32
        return Value(f"(({_word(kind)}){float(other) if kind.is_float else int(other)!r})", kind)

    def _with(self, form: str, *others: Any, dtype: DType | None = None) -> Value:
        """A form such as "({} + {})" of values that meet in one type."""
        values = [self, *[self._of(other) for other in others]]
        kind = functools.reduce(promote, [value.dtype for value in values])
        texts = [f"(({_word(kind)}){v.text})" if v.dtype is not kind else v.text for v in values]
        return Value(form.format(*texts), dtype or kind, _merged(*[v.steps for v in values]),
                     frozenset().union(*[v.loops for v in values]))

    def __add__(self, other: Any) -> Value: return self._with("({} + {})", other)
    def __radd__(self, other: Any) -> Value: return self._with("({1} + {0})", other)
    def __sub__(self, other: Any) -> Value: return self._with("({} - {})", other)
    def __rsub__(self, other: Any) -> Value: return self._with("({1} - {0})", other)
    def __mul__(self, other: Any) -> Value: return self._with("({} * {})", other)
    def __rmul__(self, other: Any) -> Value: return self._with("({1} * {0})", other)
    def __neg__(self) -> Value: return self._with("(-{})")
    def __lt__(self, other: Any) -> Value: return self._with("({} < {})", other, dtype=dtypes.bool)
    def __gt__(self, other: Any) -> Value: return self._with("({} > {})", other, dtype=dtypes.bool)
    def __le__(self, other: Any) -> Value: return self._with("({} <= {})", other, dtype=dtypes.bool)
    def __ge__(self, other: Any) -> Value: return self._with("({} >= {})", other, dtype=dtypes.bool)
    def eq(self, other: Any) -> Value: return self._with("({} == {})", other, dtype=dtypes.bool)
    def ne(self, other: Any) -> Value: return self._with("({} != {})", other, dtype=dtypes.bool)
    def maximum(self, other: Any) -> Value: return self._with("({0} > {1} ? {0} : {1})", other)
    def minimum(self, other: Any) -> Value: return self._with("({0} < {1} ? {0} : {1})", other)
    def exp2(self) -> Value: return self._floating("exp2")
    def log2(self) -> Value: return self._floating("log2")
    def exp(self) -> Value: return self._floating("exp")
    def log(self) -> Value: return self._floating("log")
    def sin(self) -> Value: return self._floating("sin")
    def sqrt(self) -> Value: return self._floating("sqrt")
    def reciprocal(self) -> Value: return 1.0 / self

    def __truediv__(self, other: Any) -> Value:
        return self._as_float()._with("({} / {})", other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._as_float()._with("({1} / {0})", other)

    def __floordiv__(self, other: Any) -> Value:      # rounded down, as Python does
        return self._with("(({0} - (({0} % {1}) + {1}) % {1}) / {1})", other)

    def __mod__(self, other: Any) -> Value:
        return self._with("((({0} % {1}) + {1}) % {1})", other)

    def where(self, yes: Any, no: Any) -> Value:
        """One of two values, by this truth value."""
        first = yes if isinstance(yes, Value) else no._of(yes) if isinstance(no, Value) else \
            Value("0", dtypes.float32)._of(yes)
        chosen = first._with(f"({self.text} ? {{}} : {{}})", no)
        return Value(chosen.text, chosen.dtype, _merged(self.steps, chosen.steps), self.loops | chosen.loops)

    def cast(self, dtype: DType) -> Value:
        """The value in another type."""
        return Value(f"(({_word(dtype)}){self.text})", dtype, self.steps, self.loops)

    def load(self) -> Value:
        """The value itself."""
        return self

    def _as_float(self) -> Value:
        return self if self.dtype.is_float else self.cast(dtypes.float32)

    def _floating(self, function: str) -> Value:
        x = self._as_float()
        return x._with(f"{function}{'f' if x.dtype is dtypes.float32 else ''}({{}})")


def _merged(*several: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple({id(step): step for steps in several for step in steps}.values())


class Element(Value):
    """One element of a memory: a value that can be written."""

    def __init__(self, memory: Memory, position: Value):
        super().__init__(f"{memory.name}[{position.text}]", memory.dtype, _merged(memory.steps, position.steps),
                         memory.loops | position.loops)
        self.memory, self.position = memory, position

    def store(self, value: Any) -> Program:
        """Write; the program so far, and this."""
        return Program(self._written(value, ()))

    def set(self, value: Any, end: Any = ()) -> Memory:
        """Write, inside loops that end here; the memory, to be read afterwards."""
        ended = end if isinstance(end, (tuple, list)) else (end,)
        return self.memory._after(self._written(value, ended))

    def _written(self, value: Any, ended: Sequence[Loop]) -> tuple[Any, ...]:
        found = self._of(value)
        before = self.memory.steps
        inside = tuple(s for s in _merged(found.steps, self.position.steps) if all(s is not b for b in before))
        store = StoreStatement(self.memory.name, f"{self.text} = {found.cast(self.dtype).text};",
                               found.loops | self.position.loops)
        return (*before, *_closed((*inside, store), ended))


# -- programs --------------------------------------------------------------------------------------------------------
class StoreStatement:
    """One writing of one element."""

    def __init__(self, memory: str, text: str, loops: frozenset[str]):
        self.memory, self.text, self.loops = memory, text, loops


class Loop(Value):
    """A variable that counts from 0."""
    made = 0

    def __init__(self, count: int):
        Loop.made += 1
        self.name, self.count = f"i{Loop.made}", count
        super().__init__(self.name, dtypes.int64, (), frozenset((self.name,)))


class Repeated:
    """Steps inside a loop."""

    def __init__(self, loop: Loop, steps: tuple[Any, ...]):
        self.loop, self.steps = loop, steps


def _closed(steps: tuple[Any, ...], loops: Sequence[Loop]) -> tuple[Any, ...]:
    for closing in reversed(loops):
        steps = (Repeated(closing, steps),)
    return steps


class Program:
    """Steps in order."""

    def __init__(self, steps: tuple[Any, ...] = ()):
        self.steps = steps

    def end(self, *loops: Loop) -> Program:
        """All of it inside loops, the first outermost."""
        return Program(_closed(self.steps, loops))

    def sink(self, *others: Any, arg: Any = None) -> Program:
        """The finished kernel. (`arg` is tinygrad's; a name and a schedule change nothing here.)"""
        return group(self, *others)

    def simplify(self) -> Program:
        """The same: the C compiler simplifies."""
        return self


class Memory(Program):
    """A tensor's elements, or a few of the kernel's own."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: DType, steps: tuple[Any, ...] = (),
                 offset: Value | None = None, loops: frozenset[str] = frozenset()):
        super().__init__(steps)
        self.name, self.shape, self.dtype, self.offset, self.loops = name, shape, dtype, offset, loops
        self.ndim, self.size = len(shape), math.prod(shape)
        _word(dtype)

    def numel(self) -> int:
        """How many elements."""
        return self.size

    def _after(self, steps: tuple[Any, ...]) -> Memory:
        return Memory(self.name, self.shape, self.dtype, steps, self.offset, self.loops)

    def after(self, *_: Any) -> Memory:
        """The same memory, read after what is named: here reading is always after what was set."""
        return self

    def reshape(self, *shape: Any) -> Memory:
        """The elements under another shape."""
        sizes = list(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.size // -math.prod(sizes)
        if math.prod(sizes) != self.size:
            raise InputError("the elements do not fit this shape", given=f"{self.shape} as {tuple(sizes)}",
                             expected=f"{self.size} elements", fix="check the sizes")
        return Memory(self.name, tuple(sizes), self.dtype, self.steps, self.offset, self.loops)

    def flatten(self) -> Memory:
        """The elements in a row."""
        return self.reshape(-1)

    def __getitem__(self, index: Any) -> Any:
        """An element; with fewer indices than axes, the memory of a row."""
        indices = [i for i in (index if isinstance(index, tuple) else (index,)) if i != slice(None)]
        if len(indices) > self.ndim:
            raise InputError("too many indices", given=f"{len(indices)} for shape {self.shape}",
                             expected=f"at most {self.ndim}", fix="check the placeholder's shape")
        position: Any = self.offset if self.offset is not None else Value("0", dtypes.int64)
        for axis, i in enumerate(indices):
            position = (i if isinstance(i, Value) else Value(str(int(i)), dtypes.int64)) * math.prod(
                self.shape[axis + 1:]) + position
        if len(indices) == self.ndim:
            return Element(self, position)
        return Memory(self.name, self.shape[len(indices):], self.dtype, self.steps, position, self.loops)


def loop(count: int, *_: Any, **__: Any) -> Loop:
    """A loop over 0 .. count - 1. (An axis' number and type are tinygrad's, and change nothing.)"""
    return Loop(int(count))


def group(*programs: Any) -> Program:
    """Programs one after another."""
    return Program(_merged(*[p.steps for p in programs]))


def register(shape: Sequence[int], dtype: DType, slot: int = 0, **_: Any) -> Memory:
    """Elements of the kernel's own."""
    return Memory(f"own{slot}_{math.prod(shape)}_{dtype.name}", tuple(shape), dtype)


# -- running ---------------------------------------------------------------------------------------------------------
def run_kernel(tensors: Sequence[TensorBase], describe: Callable[..., Any],
               grad_fxn: Callable[..., Any] | None) -> list[TensorBase]:
    """Every tensor as the kernel left it."""
    device = tensors[0].device
    if not Device[device].memory.on_host:
        raise DeviceError("a kernel of your own runs on the processor", given=f"a tensor on {device}",
                          expected="a device that shares the host's memory", fix='move it: x.to("CPU")')
    memories = [Memory(f"b{i}", t.shape, t.dtype) for i, t in enumerate(tensors)]
    program = describe(*memories)
    if not isinstance(program, Program):
        raise InputError("the function describes no kernel", given=repr(program),
                         expected="what sink() gives", fix="return out[i].store(value).end(i).sink()")
    names = _stores(program.steps)
    written = [i for i, memory in enumerate(memories) if memory.name in names]
    if not written:
        return list(tensors)
    source = _source(memories, program)
    function = load(source, "kernel")

    def launch(addresses: Sequence[int]) -> None:
        used = list(addresses[len(written):])
        for address, number in zip(addresses, written):       # what is not written stays as it was
            ctypes.memmove(address, used[number], memories[number].size * memories[number].dtype.itemsize)
            used[number] = address
        function(*map(ctypes.c_void_p, used))

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


def _stores(steps: tuple[Any, ...]) -> set[str]:
    return {name for step in steps for name in (_stores(step.steps) if isinstance(step, Repeated) else {step.memory})}


def _source(memories: Sequence[Memory], program: Program) -> str:
    """The program as C."""
    own: dict[str, str] = {}
    lines: list[str] = []

    def write(steps: tuple[Any, ...], open_loops: frozenset[str], indent: str) -> None:
        for step in steps:
            if isinstance(step, Repeated):
                name = step.loop.name
                lines.append(f"{indent}for (long long {name} = 0; {name} < {step.loop.count}; {name}++) {{")
                write(step.steps, open_loops | {name}, indent + "    ")
                lines.append(indent + "}")
                continue
            if not step.loops <= open_loops:
                raise InputError("a loop is never ended", given=step.text,
                                 expected="an end for every loop whose variable is used",
                                 fix="write .end(i) after the store")
            if step.memory.startswith("own"):
                _, size, kind = step.memory.split("_", 2)
                own[step.memory] = f"    {_word(next(d for d in C_NAMES if d.name == kind))} {step.memory}[{size}];"
            lines.append(indent + step.text)
    write(program.steps, frozenset(), "    ")
    seen: dict[str, str] = {}                               # loops by their order: the same kernel is the same text
    text = "\n".join([*own.values(), *lines])
    text = re.sub(r"\bi\d+\b", lambda name: seen.setdefault(name[0], f"n{len(seen)}"), text)
    parameters = ", ".join(f"{_word(p.dtype)} *{p.name}" for p in memories)
    return f"#include <math.h>\nvoid kernel({parameters}) {{\n{text}\n}}\n"
