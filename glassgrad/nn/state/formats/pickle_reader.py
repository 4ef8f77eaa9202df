"""Read a pickle as data. In: bytes. Out: dicts, lists, numbers, strings, and what functions of a table make.

A pickle is a program for a small stack machine whose dangerous instruction is "call this Python object". Here no name
is ever looked up in Python: GLOBAL finds its name in the caller's table or the file is refused, and REDUCE cannot call
anything else. Every instruction takes at least one byte and costs part of a budget, so time and memory are bounded.
Python's `pickletools` decodes the bytes into instructions and their arguments.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glassgrad.base.errors import FormatError
from glassgrad.nn.state.formats.byte_source import Source

MOST_INSTRUCTIONS = 10_000_000
MOST_LINE = 100_000              # bytes of a number or a string that ends with a line feed
LARGEST_KEY = (1 << 61) - 1      # larger integers can be chosen to have equal hashes, which makes a dict slow


class Maker:
    """A function called in place of a global of the file, with the reader and the arguments."""
    __slots__ = ("name", "make")

    def __init__(self, name: str, make: Callable[[PickleReader, tuple[Any, ...]], Any]):
        self.name, self.make = name, make

    def __repr__(self) -> str:
        return self.name


class Unfinished:
    """An object that a Maker made, whose content comes later, with BUILD."""
    __slots__ = ()

    def learn(self, reader: PickleReader, state: Any) -> None:
        """Take the content from BUILD's state."""
        raise NotImplementedError


Table = Mapping[tuple[str, str], Any]     # (module, name) -> a Maker, or a value


class _Damaged(Exception):
    """An instruction is wrong; becomes a FormatError with its position."""


class PickleReader:
    """Reads one pickle in a file, from `position` on; after `value`, `position` is where it ended.

    >>> import pickle
    >>> source = Source(pickle.dumps({"a": [1, 2.5, "x", None]}))
    >>> PickleReader(source, 0, source.size, {}).value()
    {'a': [1, 2.5, 'x', None]}
    """

    def __init__(self, source: Source, position: int, end: int, table: Table,
                 persistent: Callable[[PickleReader, Any], Any] | None = None, device: str | None = None):
        self.source, self.position, self.end = source, position, end
        self.table, self.persistent, self.device = table, persistent, device
        self.budget = MOST_INSTRUCTIONS
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []      # the stacks under each MARK
        self.memo: dict[int, Any] = {}

    def value(self) -> Any:
        """Return the value that the pickle describes."""
        instructions = pickletools.genops(self)  # type: ignore[arg-type]    # `read` and `readline` are all it needs
        while True:
            start = self.position
            try:
                instruction, argument, _ = next(instructions)
                if instruction.name == "STOP":
                    return self._pop()
                self.pay(1)
                self.expect(instruction.name in _INSTRUCTIONS,
                            f"{instruction.name} is no instruction that describes data")
                _INSTRUCTIONS[instruction.name](self, argument)
            except (_Damaged, KeyError, IndexError, TypeError, ValueError) as problem:
                if isinstance(problem, FormatError):
                    raise
                why = "it asks for a value that was never remembered" if isinstance(problem, KeyError) else str(problem)
                raise self.source.wrong("the pickle in it is damaged", given=f"at byte {start:,}: {why[:200]}",
                                        expected="instructions that describe data") from None

    def pay(self, amount: int) -> None:
        """Charge work to the budget; refuse the file when the budget is used up."""
        self.budget -= amount
        if self.budget < 0:
            raise self.source.wrong("the pickle in it is too large", given=f"over {MOST_INSTRUCTIONS:,} instructions",
                                    expected="a checkpoint", fix="save tensors as tensors, not as lists of numbers")

    # -- the stack ---------------------------------------------------------------------------------------------------
    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _pop(self) -> Any:
        self.expect(bool(self.stack), "it takes more values than there are")
        return self.stack.pop()

    def _taken(self, count: int) -> tuple[Any, ...]:
        """Pop the last `count` values of the stack."""
        return tuple([self._pop() for _ in range(count)][::-1])

    def _mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        self.expect(bool(self.below), "it closes what it did not open")
        items, self.stack = self.stack, self.below.pop()
        return items

    def _top(self, kind: type) -> Any:
        self.expect(bool(self.stack) and isinstance(self.stack[-1], kind),
                    f"it fills a {kind.__name__} where there is none")
        return self.stack[-1]

    def _pop_or_unmark(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    # -- containers --------------------------------------------------------------------------------------------------
    def _extend(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def _set_items(self, items: Sequence[Any]) -> None:
        target = self._top(dict)
        self.expect(len(items) % 2 == 0, "a key has no value")
        for key, value in zip(items[::2], items[1::2]):
            target[self.key(key)] = value

    def key(self, value: Any) -> Any:
        """Return the value if it may be a key: small and plain, because hashing deeply nested values overflows the
        stack."""
        if isinstance(value, tuple) and len(value) <= 16:
            for item in value:
                self.expect(not isinstance(item, tuple), "a key is a tuple of tuples")
                self.key(item)
            return value
        if value is None or isinstance(value, (str, bytes, float)) \
                or isinstance(value, int) and abs(value) < LARGEST_KEY:
            return value
        raise _Damaged(f"a key is a {type(value).__name__}")

    def _add_items(self) -> None:
        items = self._since_mark()
        self._top(set).update([self.key(item) for item in items])

    def _remember(self, place: int) -> None:
        self.expect(bool(self.stack), "it remembers a value where there is none")
        self.memo[place] = self.stack[-1]

    # -- globals -----------------------------------------------------------------------------------------------------
    def _global(self, module: Any, name: Any) -> None:
        self.expect(isinstance(module, str) and isinstance(name, str), "a global has no name")
        found = self.table.get((module, name))
        if found is None:
            full = f"{module}.{name}"
            raise self.source.wrong(
                "it holds a Python object that is not known to be data, and was not run",
                given=full if len(full) < 200 else full[:200] + "...",
                expected="tensors, numbers, texts, lists, dicts and sets",
                fix="if you trust the file, load it with PyTorch, and save only its model.state_dict()")
        self._push(found)

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        self.expect(isinstance(function, Maker) and isinstance(arguments, tuple),
                    "it calls something that is not a function")
        self._push(function.make(self, arguments))

    def _build(self) -> None:
        """BUILD: ignore attributes that PyTorch sets on dicts; give an `Unfinished` its content."""
        state = self._pop()
        if self.stack and isinstance(self.stack[-1], Unfinished):
            self.stack[-1].learn(self, state)
        else:
            self._top(dict)

    def _persistent(self, name: Any) -> None:
        if self.persistent is None:
            raise _Damaged("it refers to data outside of it")
        self._push(self.persistent(self, name))

    def damaged(self, why: str) -> Exception:
        """Return the exception for a Maker to raise when its arguments are wrong."""
        return _Damaged(why)

    def expect(self, sound: bool, why: str) -> None:
        """Refuse the file unless a Maker's arguments are `sound`."""
        if not sound:
            raise _Damaged(why)

    # -- the file interface that `pickletools` reads -----------------------------------------------------------------
    def read(self, count: int) -> bytes:
        """Return the next `count` bytes, or as many as there are."""
        begin = self.position
        self.position = min(begin + count, self.end)
        return bytes(self.source.data[begin:self.position])

    def readline(self) -> bytes:
        """Return the bytes up to the next line feed; b"" if there is none within the limit. They are searched in
        growing pieces, because most lines are short."""
        begin, piece = self.position, 128
        while True:
            found = self.read(piece)
            length = found.find(b"\n") + 1
            self.position = begin + length
            if length or len(found) < piece or piece > MOST_LINE:
                return found[:length]
            piece *= 4


# -- instructions ------------------------------------------------------------------------------------------------------
def _old_text(reader: PickleReader, text: str) -> None:
    """Return a Python 2 string, which `pickletools` reads as latin-1, as text if possible, else as bytes."""
    data = text.encode("latin-1")
    try:
        reader._push(data.decode("utf-8"))
    except UnicodeDecodeError:
        reader._push(data)


def _dict(reader: PickleReader, _: Any) -> None:
    items = reader._since_mark()
    reader._push({})
    reader._set_items(items)


# instructions that push their argument
_PUSHED = """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8""".split()
_INSTRUCTIONS: dict[str, Callable[[PickleReader, Any], Any]] = {
    **dict.fromkeys(_PUSHED, lambda r, value: r._push(value)), "NONE": lambda r, _: r._push(None),
    "NEWTRUE": lambda r, _: r._push(True), "NEWFALSE": lambda r, _: r._push(False),
    "EMPTY_TUPLE": lambda r, _: r._push(()),
    "PROTO": lambda r, protocol: r.expect(protocol <= 5, "it is of a later protocol than 5"),
    "FRAME": lambda r, _: None, "BINSTRING": _old_text, "SHORT_BINSTRING": _old_text,
    "MARK": lambda r, _: r._mark(), "POP": lambda r, _: r._pop_or_unmark(), "POP_MARK": lambda r, _: r._since_mark(),
    "DUP": lambda r, _: r._push(r._top(object)),
    "TUPLE1": lambda r, _: r._push(r._taken(1)), "TUPLE2": lambda r, _: r._push(r._taken(2)),
    "TUPLE3": lambda r, _: r._push(r._taken(3)), "TUPLE": lambda r, _: r._push(tuple(r._since_mark())),
    "EMPTY_LIST": lambda r, _: r._push([]), "LIST": lambda r, _: r._push(r._since_mark()),
    "APPEND": lambda r, _: r._extend([r._pop()]), "APPENDS": lambda r, _: r._extend(r._since_mark()),
    "EMPTY_DICT": lambda r, _: r._push({}), "DICT": _dict,
    "SETITEM": lambda r, _: r._set_items(r._taken(2)), "SETITEMS": lambda r, _: r._set_items(r._since_mark()),
    "EMPTY_SET": lambda r, _: r._push(set()), "ADDITEMS": lambda r, _: r._add_items(),
    "FROZENSET": lambda r, _: r._push(frozenset(map(r.key, r._since_mark()))),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda r, place: r._push(r.memo[place])),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda r, place: r._remember(place)),
    "MEMOIZE": lambda r, _: r._remember(len(r.memo)),
    "GLOBAL": lambda r, names: r._global(*names.split(" ", 1)), "STACK_GLOBAL": lambda r, _: r._global(*r._taken(2)),
    "REDUCE": lambda r, _: r._reduce(), "BUILD": lambda r, _: r._build(),
    "NEWOBJ": lambda r, _: r._reduce(),          # cls.__new__(cls, *args): a Maker is called the same way
    "PERSID": lambda r, name: r._persistent(name), "BINPERSID": lambda r, _: r._persistent(r._pop()),
}
