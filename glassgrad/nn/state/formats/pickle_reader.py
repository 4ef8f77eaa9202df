"""Read a pickle as data. In: bytes. Out: dicts, lists, numbers, texts, and what a table of our own functions makes.

A pickle is a program for a small stack machine whose dangerous instruction is "call this Python object". Here no name
is ever looked up in Python: GLOBAL finds its name in the table that the caller brought or the file is refused, and
REDUCE can call nothing else. Every instruction eats at least one byte and pays from a budget, so neither time nor
memory can run away.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from glassgrad.base.errors import FormatError
from glassgrad.nn.state.formats.source import Source

MOST_INSTRUCTIONS = 10_000_000
MOST_DIGITS = 1000               # of a number written as text; longer ones take long to read
MOST_NAME, MOST_LINE = 500, 100_000
LARGEST_KEY = (1 << 61) - 1      # larger integers can be chosen so that all of them collide in a dict


class Maker:
    """A function of ours that stands for a global of the file. It gets the reader and the arguments."""
    __slots__ = ("name", "make")

    def __init__(self, name: str, make: Callable[[PickleReader, tuple[Any, ...]], Any]):
        self.name, self.make = name, make

    def __repr__(self) -> str:
        return self.name


class Unfinished:
    """What a Maker made, to be told later what it is; then something else may take its place, also where the pickle
    remembered it."""
    __slots__ = ("remembered",)

    def __init__(self) -> None:
        self.remembered: list[int] = []

    def finished(self, reader: PickleReader, state: Any) -> Any:
        """What it is, with its state."""
        raise NotImplementedError


Table = Mapping[tuple[str, str], Any]     # (module, name): a Maker, or the value itself


class _Damaged(Exception):
    """Something in the instructions is wrong; becomes a FormatError that names the place."""


class PickleReader:
    """One pickle in a file, from `position` on; after `read`, `position` is where it ended.

    >>> import pickle
    >>> source = Source(pickle.dumps({"a": [1, 2.5, "x", None]}))
    >>> PickleReader(source, 0, source.size, {}).read()
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

    def read(self) -> Any:
        """The value that the pickle describes."""
        data, end = self.source.data, self.end
        while True:
            start = self.position
            try:
                if start >= end:
                    raise _Damaged("it ends too early")
                code = data[start]
                self.position = start + 1
                if code == _STOP:
                    return self._pop()
                self.budget -= 1
                if self.budget < 0:
                    self.pay(0)
                run = _INSTRUCTIONS.get(code)
                if run is None:
                    raise _Damaged(f"there is no instruction {bytes([code])!r}")
                run(self)
            except (_Damaged, KeyError, IndexError, TypeError, ValueError, struct.error) as problem:
                if isinstance(problem, FormatError):
                    raise
                known = isinstance(problem, _Damaged)
                why = str(problem) if known else _UNREADABLE.get(type(problem), "it makes no sense")
                raise self.source.wrong("the pickle in it is damaged", given=f"at byte {start:,}: {why}",
                                        expected="instructions that describe data") from None

    def pay(self, amount: int) -> None:
        """Count work that the file makes us do; too much of it is an attack."""
        self.budget -= amount
        if self.budget < 0:
            raise self.source.wrong("the pickle in it is too large", given=f"over {MOST_INSTRUCTIONS:,} instructions",
                                    expected="a checkpoint", fix="save tensors as tensors, not as lists of numbers")

    # -- bytes -------------------------------------------------------------------------------------------------------
    def _take(self, count: int) -> bytes:
        begin = self.position
        if count < 0 or begin + count > self.end:
            raise _Damaged("it ends too early")
        self.position = begin + count
        return bytes(self.source.data[begin:begin + count])

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _line(self, most: int) -> bytes:
        """The bytes up to the next line feed, which must come soon."""
        piece = 128
        while True:                      # looked for in growing pieces, so that a short line costs little
            found = bytes(self.source.data[self.position:min(self.position + piece, self.end)])
            length = found.find(b"\n")
            if length >= 0:
                self.position += length + 1
                return found[:length]
            if piece >= most or len(found) < piece:
                raise _Damaged(f"a line does not end, or has more than {most} characters")
            piece *= 4

    def _digits(self) -> str:
        return self._line(MOST_DIGITS).decode("ascii")

    def _name(self) -> str:
        return self._line(MOST_NAME).decode("utf-8")

    # -- the stack ---------------------------------------------------------------------------------------------------
    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _pop(self) -> Any:
        if not self.stack:
            raise _Damaged("it takes more values than there are")
        return self.stack.pop()

    def _mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        if not self.below:
            raise _Damaged("it closes what it did not open")
        items, self.stack = self.stack, self.below.pop()
        return items

    def _top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _Damaged(f"it fills a {kind.__name__} where there is none")
        return self.stack[-1]

    def _pop_or_unmark(self) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    # -- containers --------------------------------------------------------------------------------------------------
    def _extend(self, items: list[Any]) -> None:
        self._top(list).extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._top(dict)
        if len(items) % 2:
            raise _Damaged("a key has no value")
        for key, value in zip(items[::2], items[1::2]):
            target[self.key(key)] = value

    def key(self, value: Any) -> Any:
        """A value that may be a key: small and plain, because hashing what is nested deeply overflows the stack."""
        if isinstance(value, tuple) and len(value) <= 16:
            for item in value:
                if isinstance(item, tuple):
                    raise _Damaged("a key is a tuple of tuples")
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
        if not self.stack:
            raise _Damaged("it remembers a value where there is none")
        self.memo[place] = value = self.stack[-1]
        if isinstance(value, Unfinished):
            value.remembered.append(place)

    # -- globals -----------------------------------------------------------------------------------------------------
    def _global(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise _Damaged("a global has no name")
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
        if not isinstance(function, Maker) or not isinstance(arguments, tuple):
            raise _Damaged("it calls something that is not a function")
        self._push(function.make(self, arguments))

    def _build(self) -> None:
        """Attributes set on an object: PyTorch's notes on dicts are not data; what is unfinished learns what it is."""
        state = self._pop()
        if self.stack and isinstance(self.stack[-1], Unfinished):
            before = self.stack.pop()
            value = before.finished(self, state)
            self._push(value)
            for place in before.remembered:
                if self.memo.get(place) is before:
                    self.memo[place] = value
            return
        self._top(dict)

    def _persistent(self, name: Any) -> None:
        if self.persistent is None:
            raise _Damaged("it refers to data outside of it")
        self._push(self.persistent(self, name))

    def damaged(self, why: str) -> Exception:
        """What a Maker raises when its arguments are wrong."""
        return _Damaged(why)

    def expect(self, sound: bool, why: str) -> None:
        """Refuse the arguments of a Maker unless they are sound."""
        if not sound:
            raise _Damaged(why)


_UNREADABLE: dict[type, str] = {KeyError: "it asks for a value that was never remembered",
                                UnicodeDecodeError: "a text is not UTF-8"}
_STOP = ord(".")

Run = Callable[[PickleReader], None]


def _pushes(read: Callable[[PickleReader], Any]) -> Run:
    return lambda r: r._push(read(r))


def _text(form: str) -> Run:
    return _pushes(lambda r: str(r._take(r._number(form)), "utf-8", "surrogatepass"))


def _old_text(form: str) -> Run:
    """A Python 2 string: text if it can be, else bytes."""
    return _pushes(lambda r: _decoded(r._take(r._number(form))))


def _decoded(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _bytes(form: str) -> Run:
    return _pushes(lambda r: r._take(r._number(form)))


def _long(form: str) -> Run:
    return _pushes(lambda r: int.from_bytes(r._take(r._number(form)), "little", signed=True))


def _tuple(count: int) -> Run:
    def run(r: PickleReader) -> None:
        items = [r._pop() for _ in range(count)]
        r._push(tuple(reversed(items)))
    return run


def _protocol(r: PickleReader) -> None:
    if r._take(1)[0] > 5:
        raise _Damaged("it is of a later protocol than 5")


def _small_integer(r: PickleReader) -> Any:
    text = r._digits()
    return {"00": False, "01": True}.get(text) if text in ("00", "01") else int(text)


def _duplicate(r: PickleReader) -> None:
    r._push(r.stack[-1])


def _global_by_stack(r: PickleReader) -> None:
    name, module = r._pop(), r._pop()
    r._global(module, name)


def _append(r: PickleReader) -> None:
    value = r._pop()
    r._extend([value])


def _set_item(r: PickleReader) -> None:
    value, key = r._pop(), r._pop()
    r._set_items([key, value])


def _dict(r: PickleReader) -> None:
    items = r._since_mark()
    r._push({})
    r._set_items(items)


_BY_CHARACTER: dict[bytes, Run] = {
    b"(": PickleReader._mark, b"0": PickleReader._pop_or_unmark, b"1": lambda r: (r._since_mark(), None)[1],
    b"2": _duplicate,
    b"N": _pushes(lambda r: None), b"\x88": _pushes(lambda r: True), b"\x89": _pushes(lambda r: False),
    b"I": _pushes(_small_integer), b"L": _pushes(lambda r: int(r._digits().rstrip("L"))),
    b"J": _pushes(lambda r: r._number("<i")), b"K": _pushes(lambda r: r._number("<B")),
    b"M": _pushes(lambda r: r._number("<H")),
    b"\x8a": _long("<B"), b"\x8b": _long("<i"),
    b"F": _pushes(lambda r: float(r._digits())), b"G": _pushes(lambda r: r._number(">d")),
    b"V": _pushes(lambda r: r._line(MOST_LINE).decode("raw-unicode-escape")),
    b"X": _text("<I"), b"\x8c": _text("<B"), b"\x8d": _text("<Q"), b"T": _old_text("<i"), b"U": _old_text("<B"),
    b"B": _bytes("<I"), b"C": _bytes("<B"), b"\x8e": _bytes("<Q"),
    b"\x96": _pushes(lambda r: bytearray(r._take(r._number("<Q")))),
    b")": _pushes(lambda r: ()), b"\x85": _tuple(1), b"\x86": _tuple(2), b"\x87": _tuple(3),
    b"t": _pushes(lambda r: tuple(r._since_mark())),
    b"]": _pushes(lambda r: []), b"l": _pushes(lambda r: r._since_mark()), b"a": _append,
    b"e": lambda r: r._extend(r._since_mark()),
    b"}": _pushes(lambda r: {}), b"d": _dict, b"s": _set_item, b"u": lambda r: r._set_items(r._since_mark()),
    b"\x8f": _pushes(lambda r: set()), b"\x90": PickleReader._add_items,
    b"\x91": _pushes(lambda r: frozenset([r.key(item) for item in r._since_mark()])),
    b"g": _pushes(lambda r: r.memo[int(r._digits())]), b"h": _pushes(lambda r: r.memo[r._number("<B")]),
    b"j": _pushes(lambda r: r.memo[r._number("<I")]),
    b"p": lambda r: r._remember(int(r._digits())), b"q": lambda r: r._remember(r._number("<B")),
    b"r": lambda r: r._remember(r._number("<I")), b"\x94": lambda r: r._remember(len(r.memo)),
    b"c": lambda r: r._global(r._name(), r._name()), b"\x93": _global_by_stack,
    b"R": PickleReader._reduce, b"b": PickleReader._build,
    b"\x81": PickleReader._reduce,               # cls.__new__(cls, *args): a Maker serves both ways of making
    b"P": lambda r: r._persistent(r._name()), b"Q": lambda r: r._persistent(r._pop()),
    b"\x80": _protocol, b"\x95": lambda r: (r._number("<Q"), None)[1],
}
_INSTRUCTIONS: dict[int, Run] = {code[0]: run for code, run in _BY_CHARACTER.items()}
