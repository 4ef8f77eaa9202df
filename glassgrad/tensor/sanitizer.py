"""Report a NaN or an infinity where it is made (SANITIZE=1). In: values to compute. Out: NotFiniteError.

Along with each result of floats the run computes one number, as for an index (index_range_check.py): the position of
the first NaN, or else of the first infinity. It is a minimum over positions, so it has the same bits in every run.
Eight of these numbers share a buffer and are read at once. Replays of a jitted function compute and read them too. When
a number names an element, the values between kernels are computed once more and stored, and a search goes back from the
bad element to the op that made it (compiler/check/non_finite.py).

A NaN is always reported. An infinity is reported if an op made it of finite operands. An infinity that the program
wrote down, or that was in a tensor already, is intended (a mask of -inf); from then on, results of that line may
contain infinities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from glassgrad.base.call_tree import CallTree, Noted
from glassgrad.base.errors import NotFiniteError
from glassgrad.base.source_lines import Line, Place, calls_of, line_of, note_calls
from glassgrad.compiler.check.graph_interpreter import from_storage
from glassgrad.compiler.check.non_finite import COMPILED, CONSTANT, GIVEN, MADE, BadElement, Origin, origin
from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.compiler.graph.axis_dependence import coordinates
from glassgrad.compiler.graph.node import concrete
from glassgrad.compiler.graph.symbolic import value_of
from glassgrad.engine.capture import record
from glassgrad.tensor.formulas.movement import cat, counting

Read = Callable[[Sequence[UOp]], list[memoryview]]      # reads the values of nodes from memory
_MOST_POSITIONS = 1 << 30                        # int32 holds twice as many: positions of NaN and of infinities
_TOGETHER = 8                                    # numbers that share a buffer: each copy from a GPU is a round trip
_KEPT = (o.BUFFER, o.GATHER, o.SCATTER, o.SCAN, o.RANDOM)      # stored in the search (reductions too): costly
_meant: set[tuple[Line | None, tuple[Any, ...]]] = set()      # lines and shapes of results with intended infinities


class FiniteCheck(NamedTuple):
    """Results to check for NaN and infinities."""
    nodes: list[UOp]
    first_bad: UOp           # int32, of each: p where element p is the first NaN, n + p for an infinity, 2n for none

    def flag(self, result: UOp) -> FiniteFlags:
        """Return the `FiniteFlags` that reads the numbers, given the computed node."""
        return FiniteFlags(self, result)

    def passed(self) -> None:
        """Do nothing: a result is computed only once."""


def note_layers() -> Callable[[], Any]:
    """Make new nodes record the layers and calls around them, for messages, until the returned function is called."""
    before = note_calls(None)
    note_calls(before or CallTree(most_nodes=float("inf")).note)
    return partial(note_calls, before)


def finite_checks(nodes: Sequence[UOp]) -> list[FiniteCheck]:
    """Return the checks to compute along with these nodes."""
    note_layers()
    found: dict[str | None, list[UOp]] = {}              # by device
    for node in dict.fromkeys(nodes):
        if node.dtype.is_float and node.size and node.base.op is not o.BUFFER:
            found.setdefault(node.device, []).append(node)
    rows = [mine[at:at + _TOGETHER] for mine in found.values() for at in range(0, len(mine), _TOGETHER)]
    return [FiniteCheck(row, cat([_first_bad(node) for node in row]).contiguous()) for row in rows]


def _first_bad(node: UOp) -> UOp:
    flat, size = node.reshape((node.elements,)), min(node.size, _MOST_POSITIONS)
    position = counting(flat.elements) if node.size <= _MOST_POSITIONS else const(0, counting(1).dtype)
    is_nan, is_infinite = flat.ne(flat), flat.alu(o.ABS).eq(float("inf"))
    word = is_nan.where(position, is_infinite.where(position + size, const(2 * size, position.dtype)))
    return word.reduce(o.AMIN, (0,)) if node.size > 1 else word.contiguous()


class FiniteFlags:
    """The numbers that say whether results are finite, in memory that later runs overwrite."""
    __slots__ = ("nodes", "bounds", "buffer")
    reads_each_run = True            # whether an infinity is intended is decided in Python
    numbers = None

    def __init__(self, check: FiniteCheck, result: UOp):
        self.nodes, self.buffer = check.nodes, result.base.arg
        self.bounds = [min(node.size, _MOST_POSITIONS) for node in check.nodes]      # smaller numbers mean a NaN

    def over(self, change: Callable[[UOp], UOp]) -> FiniteFlags:
        """Return the same flags with their results in other buffers."""
        made = copy(self)
        made.nodes = [change(node) for node in self.nodes]
        return made

    def verify(self, read: Read) -> None:
        """Raise if one of the last run's results is not finite; `read` reads values of that run."""
        words = self.buffer.copy_out().cast("i")
        for node, size, word in zip(self.nodes, self.bounds, words):
            if word < 2 * size:
                _refuse(node, word % size, word >= size, read)


def _refuse(node: UOp, position: int, infinite: bool, read: Read) -> None:
    """Raise for an element that is a NaN, or an infinity that is not intended."""
    key = line_of(node.place), node.shape
    if infinite and key in _meant:
        return
    with record():                               # keeps what is computed for the message out of the user's trace
        found, index = _origin(node, position, read)
    if infinite and found.kind in (GIVEN, CONSTANT):
        _meant.add(key)
        return
    raise _error(found, "an infinity" if infinite else "a NaN", BadElement(node, index, None))


def _origin(node: UOp, position: int, read: Read) -> tuple[Origin, tuple[int, ...]]:
    """Find the op that first made the element bad, by storing the values between kernels; return it and the element's
    index."""
    node = concrete([node], value_of)[node]
    wanted = [node, *[n for n in toposort([node]) if (n.op in o.REDUCE or n.op in _KEPT) and n is not node]]
    stored = {n: from_storage(data, n.dtype).reshape(n.shape) for n, data in zip(wanted, read(wanted))}
    index = tuple(coordinates(position, node.shape))
    return origin(node, index, stored), index


# -- the message ---------------------------------------------------------------------------------------------
def _error(found: Origin, what: str, result: BadElement) -> NotFiniteError:
    cause = found.cause
    if cause is not None and cause.kind in (MADE, COMPILED):         # the NaN follows from an overflow
        return _described(cause, "an infinity", result, f", and {_formula(found)}")
    return _described(found, what, result, "")


def _described(found: Origin, what: str, result: BadElement, then: str) -> NotFiniteError:
    node, index, value = found.found
    held = f"{node.dtype.name} {node.shape}"
    asked = result.node.src[0] if result.node.op is o.CONTIGUOUS else result.node
    reaches = "" if node is asked else f"\nreaches {_element(result)}"
    if found.kind == GIVEN:
        made = node.arg.place if node.op is o.BUFFER else node.place
        given = f"{value} at {list(index)} of a tensor {held} that it is computed from"
        return NotFiniteError(f"the input already holds {what}", given=given + _made_at(made) + reaches,
                              expected="inputs, weights and data without NaN",
                              fix="look at that tensor before it is used: load_state_dict, the data, the last step",
                              where=_where(asked.place))
    if found.kind == CONSTANT:
        given, fix = f"the constant {value}", "write another number"
    elif found.kind == COMPILED:
        given = f"{value} at {list(index)} of {node.op.name}, {held}, where exact arithmetic stays just finite"
        fix = "keep its operands smaller"
    else:
        given = f"{_formula(found)} at {list(index)} of {held}{then}"
        fix = _ADVICE.get(node.op, _SMALLER)
    noted: Noted | None = calls_of(node.place)
    place = node.place
    if noted is not None:
        given += noted.words
        if noted.backward and noted.forward is not None:
            given += f"\nin the gradient of {line_of(noted.forward)}, which {_where(place)} computes"
            place = noted.forward
    return NotFiniteError(f"a result holds {what}", given=given + reaches,
                          expected="finite values in what is computed and kept, or infinities that the program writes",
                          fix=f"{fix}; SANITIZE=0 goes on with it", where=_where(place))


_SMALLER = "keep the operands smaller: a lower learning rate, normalized inputs, or a wider dtype"
_ADVICE = {
    o.LOG2: "give the logarithm numbers above 0: add a small one, or clip",
    o.SQRT: "give the square root numbers of 0 and above: clip, or add a small one before it",
    o.RECIP: "do not divide by 0: add a small number to the divisor, or choose by where",
    o.DIV: "do not divide by 0: add a small number to the divisor, or choose by where",
    o.EXP2: "subtract the largest value before the exponential, as softmax and logsumexp do",
    o.SUB: "a row in which every element is masked by -inf has no softmax: leave one element unmasked",
}


def _element(result: BadElement) -> str:
    """Describe an element of a result, without the axes of length 1 that reductions leave and the program may
    not see."""
    long = [(i, n) for i, n in zip(result.at, result.node.shape) if n != 1]
    return f"{[i for i, _ in long]} of the result, {tuple(n for _, n in long)}" if long else "the result"


def _formula(found: Origin) -> str:
    """Write the op with its operands: `LOG2(-1.0) = nan`."""
    node, _, value = found.found
    operands = ", ".join(f"{float(one.value):.9g}" for one in found.operands)
    more = ", ..." if node.op in o.REDUCE else ""
    return f"{node.op.name}({operands}{more}) = {float(value):.9g}"


def _made_at(place: Place | None) -> str:
    line = line_of(place)
    return "" if line is None else f", made at {line}"


def _where(place: Place | None) -> str:
    return str(line_of(place) or "")
