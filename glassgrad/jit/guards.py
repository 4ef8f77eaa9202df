"""What a function can see without being given it, and whether that is as it was. In: a function, objects. Out: `Walk`,
`compiled`. Does not know traces or replays.

One walk visits the names in the function's closure, defaults and globals, its `self`, objects among its arguments, and
everything reached from there: attributes, entries of lists and dicts, other functions of the user's. Numbers, strings
and arrays are guarded by value, lists and dicts by content, other objects by identity. A tensor is found again by its
path, so another one in the same place is read by the next call. Attributes that the code names come first; the rest is
visited while there are fewer than `MOST_BINDINGS` values. Libraries' code is taken to stay as it is.

`compiled` writes the comparison of all values as one Python function, which each call runs. Measured on the 58 values
of `benchmarks/dispatch.py`, both in the same minute: 2.5 us so, 10.2 us by a loop over the same list, of 19 us that a
call took. It never holds the `self` of a method, nor what leads to it: it starts from the `self` of each call.
"""

from __future__ import annotations

import contextvars
import dis
import functools
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, NamedTuple

from glassgrad.base.errors import JitError
from glassgrad.jit.plain_values import (ARRAY, ATTRIBUTE, CELL, CLASS_ENTRY, CONTENT, CONTEXT, ENTRY, ENVIRONMENT, GONE,
                                        ITEM, MEMBER, MISSING, PLAIN, PROGRESS, SIZE, Binding, Increment, Way,
                                        expression_names, is_array, is_plain, same)
from glassgrad.tensor.jit_access import GRADIENT_SLOT, WANTED_SLOT
from glassgrad.tensor.tensor import Tensor

MOST_BINDINGS = 20_000          # more cannot be compared at each call
_LARGEST_ARRAY = 1 << 20        # bytes; larger arrays are recognized by identity
_LONG = 16                      # lists of more plain values are compared as a whole
_LARGE = 4096                   # lists and dicts of more objects are compared by identity of their entries
_NOT_IMPLIED = ("__init__", "__repr__", "__str__", "__del__", "__reduce__")      # methods that run only where named

# Objects whose attributes are not visited: nothing that a function computes depends on them
_CLOSED_PARTS = ("base", "cli", "compiler", "engine", "jit", "runtime", "tensor")
_FETCHES = ("LOAD", "COPY", "SWAP", "DUP_TOP", "ROT_", "BINARY_SUBSCR", "EXTENDED_ARG")
_SUMS_OF_3_10 = {"BINARY_ADD": "+", "INPLACE_ADD": "+=", "BINARY_SUBTRACT": "-", "INPLACE_SUBTRACT": "-="}
_TEST_TOOLS = ("_pytest", "pytest", "pluggy")
_OPEN_STANDARD = ("builtins", "types", "collections", "argparse", "functools", "enum", "dataclasses", "_thread",
                  "_contextvars")

# Read-only attributes that lead on to other objects, by type
_PARTS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__func__", "__self__"), staticmethod: ("__func__",), classmethod: ("__func__",),
    property: ("fget", "fset"), functools.partial: ("func", "args", "keywords")}


class Walk:
    """Every value that a function can see, and the text of a function that compares all of them."""

    def __init__(self, function: Any, objects: Sequence[Any] = (), instance: Any = None):
        self.bindings: list[Binding] = []
        self.tensors: list[Tensor] = []
        self.paths: list[str] = []                       # of the tensors
        self.read: set[str] = set()                      # names that code it may run reads, other than to increment
        self.lines: list[tuple[str, Binding | None]] = []      # of the generated function, and the binding each is for
        self.constants: dict[str, Any] = {"same": same, "MISSING": MISSING, **expression_names}
        self._weak = instance is not None                # what leads to the `self` of a method must not be kept alive
        self.variables: dict[int, str] = {}              # of each object visited or waiting, by id
        self._known: set[tuple[int, Any]] = set()        # (holder, name): holders are held by the bindings
        self._named: set[str] = set()                    # names that occur in the code of functions
        self._waiting: list[tuple[Any, str, str]] = []   # (object, path, variable)
        self._unnamed: dict[str, list[tuple[Any, str, str]]] = {}      # the same of attributes that no code names yet
        for thing, path in [(function, "the function"), *[(o, type(o).__name__) for o in objects]]:
            self._visit_later(thing, path, self._constant(thing))
        if instance is not None:
            self._visit_later(instance, type(instance).__name__, "instance")
        self._visit_waiting()
        if len(self.bindings) > MOST_BINDINGS:
            raise JitError("this function can see too much to be watched",
                           given=f"more than {MOST_BINDINGS} values in its closure, globals and objects",
                           expected="a function that sees its model and little else",
                           fix="hand in the data as arguments, as tensors")
        read = set(self.read)
        self._visit_waiting(all_names=True)
        self.read = read

    def changed(self) -> Iterator[tuple[Binding, Any]]:
        """The bindings whose value has changed since the walk, each with its value now."""
        for binding in self.bindings:
            now = binding.way.read(binding.holder, binding.name)
            if not same(now, binding.value):
                yield binding, now

    # -- the generated function ----------------------------------------------------------------------------------------
    def _constant(self, value: Any) -> str:
        """A name for an object in the generated function."""
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def _variable(self, value: Any, text: str) -> str:
        """Add a variable to the generated function for an object; `text` is the expression that reads it."""
        name = self.variables[id(value)] = f"x{len(self.lines)}"
        self._line(f"{name} = {text}")
        return name

    def _line(self, text: str) -> None:
        self.lines.append((text, self.bindings[-1] if self.bindings else None))

    def _unless(self, test: str) -> None:
        """Add a line: the latest binding has changed unless a test holds."""
        self._line(f"if not ({test}): raise LookupError")

    def _add(self, way: Way, holder: Any, name: Any, source: str, path: str, used: str | None = None) -> None:
        """Add a binding, and visit its value later; `source` is the expression of its holder. If its name, `used`,
        occurs in no code, it is visited last."""
        key = (id(holder), name if way.kept is None else way)
        if key in self._known:                              # two functions see one global
            return
        self._known.add(key)
        value = way.read(holder, name)
        if way.kept is not None and value is not GONE:
            value = way.kept(value)
        text = way.expression.format(source, repr(name) if type(name) in (str, int) else self._constant(name))
        self.bindings.append(Binding(way, holder, name, value, path, source, text))
        if value is GONE:
            self._unless(f"{self._constant(way)}.read({source}, {name!r}) is GONE")
        elif way.kept is not None or is_plain(value):
            kept = self._constant(value)
            exact = way is SIZE or isinstance(value, (set, frozenset)) and all(type(v) is str for v in value)
            quickly = f"{text} == {kept} or " if exact else f"{text} is {kept} or " if way.kept is None else ""
            self._unless(f"{quickly}same({text}, {kept})")
        elif id(value) in self.variables:
            self._unless(f"{text} is {self.variables[id(value)]}")
        else:
            variable = self._variable(value, text)
            self._recognize(value, variable)
            self._visit_later(value, path, variable, used)

    def _recognize(self, value: Any, variable: str) -> None:
        """Add a comparison of an object: by class where its content is compared as well, else by identity."""
        kind = type(value)
        if issubclass(kind, (Tensor, list, dict, tuple, deque, set, frozenset)) or _is_small_array(value):
            known = "" if self._weak or issubclass(kind, Tensor) else f"{variable} is {self._constant(value)} or "
            wanted = f" and {variable}.{WANTED_SLOT} is {value._requires_grad}" if issubclass(kind, Tensor) else ""
            self._unless(f"{known}type({variable}) is {self._constant(kind)}{wanted}")
        elif not self._weak or issubclass(kind, (type, types.ModuleType)):
            self._unless(f"{variable} is {self._constant(value)}")
        else:
            try:
                kept = self._constant(weakref.ref(value))
                self._unless(f"{variable} is not None and {variable} is {kept}()")
            except TypeError:                    # then by class: its attributes are compared as well
                self._unless(f"type({variable}) is {self._constant(kind)}" if _is_open(kind) else
                             f"{variable} is {self._constant(value)}")

    def _part(self, value: Any, text: str, path: str) -> None:
        """Visit a read-only part of an object (a method's function), which needs no comparison."""
        if id(value) not in self.variables and not is_plain(value):
            self._visit_later(value, path, self._variable(value, text))

    # -- visiting ------------------------------------------------------------------------------------------------------
    def _visit_later(self, thing: Any, path: str, variable: str, used: str | None = None) -> None:
        """Queue an object to be visited; if `used` is given, the name of the attribute it is in, and occurs in no code
        yet, it waits until all others were visited."""
        self.variables[id(thing)] = variable
        named = used is None or used in self._named
        (self._waiting if named else self._unnamed.setdefault(str(used), [])).append((thing, path, variable))

    def _visit_waiting(self, all_names: bool = False) -> None:
        """Visit the queued objects; with `all_names`, also those whose names occur in no code."""
        while len(self.bindings) <= MOST_BINDINGS:
            if all_names and self._unnamed and not self._waiting:
                self._waiting = self._unnamed.popitem()[1]
            if not self._waiting:
                return
            self._visit(*self._waiting.pop())

    def _visit(self, thing: Any, path: str, variable: str) -> None:
        kind = type(thing)
        if issubclass(kind, Tensor):
            self.tensors.append(thing)
            self.paths.append(path)
        elif kind is types.FunctionType:
            self._visit_function(thing, variable)
        elif kind in _PARTS:
            for name in _PARTS[kind]:
                self._part(getattr(thing, name), f"{variable}.{name}", path)
        elif issubclass(kind, type):
            self._visit_class(thing, variable)
        elif issubclass(kind, (list, tuple, dict, set, frozenset, deque)):
            self._visit_container(thing, path, variable)
        elif is_array(thing):
            if _is_small_array(thing):
                self._add(ARRAY, thing, "", variable, f"the content of {path}")
        elif hasattr(kind, "__next__") and not hasattr(thing, "__dict__") or issubclass(kind, random.Random):
            self._add(PROGRESS, thing, "", variable, f"how far {path} has come")
            for i, part in enumerate(_iterated(thing)):
                self._part(part, f"{self._constant(_iterated)}({variable})[{i}]", path)
        elif kind is contextvars.ContextVar:
            self._add(CONTEXT, thing, "", variable, path)
        elif hasattr(kind, "__wrapped__") or "__wrapped__" in getattr(thing, "__dict__", ()):
            self._part(thing.__wrapped__, f"{variable}.__wrapped__", path)       # a jit, a cache, a decorator's object
        elif kind is not types.ModuleType and _is_open(kind):
            self._visit_object(thing, path, variable)

    def _visit_function(self, function: Any, variable: str) -> None:
        if not _is_user_code(function.__module__):
            return
        used = _names_used(function.__code__)
        self.read |= used.read
        self._named |= used.names
        for name in sorted(self._unnamed.keys() & used.names):
            self._waiting += self._unnamed.pop(name)
        for i, (name, variable_cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or ())):
            self._add(CELL, variable_cell, "cell_contents", f"{variable}.__closure__[{i}]", name)
        space = function.__globals__
        self._add_globals(space, used.globals)
        package = str(space.get("__package__") or "")
        imported = [full for name in used.imports for full in (name, f"{package}.{name}".rstrip("."))]
        modules = {name: space.get(name) for name in used.globals} | {name: sys.modules.get(name) for name in imported}
        for path, module in sorted(modules.items()):
            if isinstance(module, types.ModuleType) and _is_user_code(module.__name__):
                self._add_globals(vars(module), used.names, f"{path}.")
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name) is not None:
                self._add(ATTRIBUTE, function, name, variable, f"{function.__name__}.{name}")
        if used.names & {"environ", "getenv", "environb"}:
            self._add(ENVIRONMENT, None, "", "", "the environment")

    def _add_globals(self, space: dict[str, Any], names: Set[str], path: str = "") -> None:
        """Add those of a module's names that occur in code."""
        if id(space) not in self.variables:
            self.variables[id(space)] = self._constant(space)
        for name in sorted(space.keys() & names):
            self._add(MEMBER, space, name, self.variables[id(space)], path + name)

    def _visit_class(self, cls: Any, variable: str) -> None:
        if not _is_user_code(cls.__module__):
            return
        named, entries = cls.__name__, vars(cls)
        self._add(SIZE, entries, "", f"{variable}.__dict__", f"the number of {named}'s attributes")
        for name, value in list(entries.items()):
            is_code = isinstance(value, (types.FunctionType, staticmethod, classmethod, property))
            dunder = name.startswith("__")
            if is_code or not (dunder or isinstance(value, types.MemberDescriptorType)):
                self._add(CLASS_ENTRY, cls, name, variable, f"{named}.{name}",
                          None if dunder and name not in _NOT_IMPLIED else name)
        for i, base in enumerate(cls.__bases__):
            self._part(base, f"{variable}.__bases__[{i}]", base.__name__)

    def _visit_container(self, thing: Any, path: str, variable: str) -> None:
        is_dict, is_set = isinstance(thing, dict), isinstance(thing, (set, frozenset))
        values = list(thing.values()) if is_dict else list(thing)
        if len(values) > _LONG and all(map(is_plain, values)) or is_set:
            self._add(CONTENT, thing, "", variable, path)
            return
        if not isinstance(thing, tuple):
            self._add(SIZE, thing, "", variable, f"the length of {path}")
        large = len(values) > _LARGE
        if large:
            self._add(CONTENT, thing, "", variable, path)
        way = ENTRY if is_dict and type(thing) is not dict else ITEM
        for name, value in zip(list(thing) if is_dict else range(len(thing)), values):
            if not large or isinstance(value, Tensor):
                self._add(way, thing, name, variable, f"{path}[{name!r}]")

    def _visit_object(self, thing: Any, path: str, variable: str) -> None:
        # attributes that only the host reads: kernels read tensors instead (an optimizer's learning rate)
        unwatched = ("__weakref__", "__dict__", *getattr(type(thing), "__jit_unwatched__", ()))
        ours = not _is_user_code(type(thing).__module__)     # its code is not visited: every attribute counts as used
        own = getattr(thing, "__dict__", None)
        if type(own) is dict:
            source = self._variable(own, f"{variable}.__dict__")
            self._add(SIZE, own, "", source, f"the number of {path}'s attributes")
            for name in list(own):
                if name not in unwatched:
                    self._add(MEMBER, own, name, source, f"{path}.{name}", None if ours else str(name))
        for base in type(thing).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in unwatched and hasattr(thing, name):
                    self._add(ATTRIBUTE, thing, name, variable, f"{path}.{name}")
        if not ours:
            self._part(type(thing), self._constant(type(thing)), path)


class Stale(Exception):
    """A replay does not fit this call: the message says what has changed that the trace relied on."""


def compiled(walk: Walk, bound: Sequence[tuple[Binding, Any]] = (), graded: Sequence[int] = (),
             hidden: Sequence[Tensor] = ()) -> Callable[[Any, Sequence[Any]], tuple[list[Tensor], bool, list[Any]]]:
    """A function of a call's `self` and of what the last call left, that compares everything that a walk found, and
    raises `Stale` if something has changed. It returns the tensors; whether their nodes, and the gradients of those
    that are `graded`, by number, are what the last call left; and the holders of the names that each call binds
    (`bound`, with what it binds them to). `hidden` are further tensors, which it refers to weakly."""
    lines, names = list(walk.lines), dict(walk.constants)
    raised = {id(b) for b, value in bound if isinstance(value, Increment)}
    for i, (line, b) in enumerate(lines):
        if b is not None and id(b) in raised and line.startswith("if"):        # of a counter the type is compared
            lines[i] = (f"if type({b.text}) is not {type(b.value).__name__}: raise LookupError", b)
    why = [f"{b.path} is no longer {_shown(b.value)}" if b else "what it sees has changed" for _, b in lines]
    tensors = [*[walk.variables[id(t)] for t in walk.tensors], *[f"hidden{i}" for i in range(len(hidden))]]
    for i, tensor in enumerate(hidden):
        names[f"found{i}"] = weakref.ref(tensor)
        lines.append((f"if (hidden{i} := found{i}()) is None or hidden{i}.{WANTED_SLOT} is not "
                      f"{tensor._requires_grad}: raise LookupError", None))
        why.append("a tensor it uses is gone, or its requires_grad is no longer the same")
    state = [f"{t}.uop" for t in tensors] + [f"{tensors[i]}.{GRADIENT_SLOT}" for i in graded]
    steady = " and ".join([f"{now} is left[{i}]" for i, now in enumerate(state)]) or "True"
    holders = ", ".join([b.source for b, _ in bound])
    answer = f"return [{', '.join(tensors)}], {steady}, [{holders}]"
    body = "\n        ".join([*[line for line, _ in lines], answer])
    text = ("def check(instance, left):\n    try:\n        " + body + "\n"
            "    except MISSING as error:\n"
            "        raise Stale(why[error.__traceback__.tb_lineno - 3]) from None\n")
    names.update(why=why, Stale=Stale)
    exec(compile(text, "<guards>", "exec"), names)
    check: Callable[[Any, Sequence[Any]], Any] = names["check"]
    return check


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, PLAIN) and len(repr(value)) < 60 else f"the {type(value).__name__} it was"


def _is_small_array(value: Any) -> bool:
    return is_array(value) and value.nbytes <= _LARGEST_ARRAY


def _iterated(iterator: Any) -> tuple[Any, ...]:
    """What a built-in iterator (list_iterator, zip, map) iterates over, where it can be asked."""
    try:
        parts = iterator.__reduce__()
    except TypeError:                    # a generator
        return ()
    return tuple(parts[1]) if isinstance(parts, tuple) else ()


def _is_user_code(module: str | None) -> bool:
    """Whether a module may change what it does between two calls: not one of Python, glassgrad, NumPy or PyTorch."""
    root = (module or "").split(".")[0]
    return root not in ("glassgrad", "numpy", "torch", "builtins") and (
        root == "__main__" or root not in sys.stdlib_module_names)


def _is_open(kind: type) -> bool:
    """Whether an object's attributes are visited."""
    root, _, rest = (kind.__module__ or "").partition(".")
    if root == "glassgrad":
        return rest.split(".")[0] not in _CLOSED_PARTS
    return root in _OPEN_STANDARD or issubclass(kind, threading.local) or \
        _is_user_code(root) and root not in _TEST_TOOLS


class _CodeNames(NamedTuple):
    """The globals, the modules and all names that code uses, with the functions defined inside it; and the names that
    it reads other than to increment them (`self.step += 1`)."""
    globals: set[str]
    imports: set[str]
    names: set[str]
    read: set[str]


@functools.lru_cache(maxsize=1024)
def _names_used(code: Any) -> _CodeNames:
    codes = list(_codes_in(code))
    texts = {text for each in codes for text in each.co_consts if isinstance(text, str)}      # getattr(model, "bias")
    found = _CodeNames(set(), set(), texts.union(*[each.co_names for each in codes]), set())
    for rows in [list(dis.get_instructions(each)) for each in codes]:
        found.globals.update(row.argval for row in rows if row.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"))
        found.imports.update(row.argval for row in rows if row.opname == "IMPORT_NAME")
        found.read.update(_names_read(rows))
    return found


def _names_read(rows: Sequence[dis.Instruction]) -> Iterator[str]:
    for i, row in enumerate(rows):
        if row.opname.startswith("LOAD") and isinstance(row.argval, str) and not row.opname.startswith("LOAD_CONST"):
            if not _is_incremented(row.argval, rows[i + 1:i + 7]):
                yield row.argval


def _is_incremented(name: str, after: Sequence[dis.Instruction]) -> bool:
    """Whether code that has loaded a name goes on with one sum and stores it: `s.n += 1`, not `s.n = 1 - s.n`."""
    end = next((i for i, row in enumerate(after) if row.opname.startswith("STORE") and row.argval == name), 0)
    done = ["" if row.opname.startswith(_FETCHES) or row.argrepr == "[]" else
            _SUMS_OF_3_10.get(row.opname) or row.argrepr or row.opname for row in after[:end]]
    sums = [text for text in done if text]
    into = done and not done[0] and after[0].opname.startswith(("LOAD_ATTR", "BINARY"))      # s.n.parts, table[s.n]
    return not into and (sums in (["+"], ["+="]) or sums in (["-"], ["-="]) and not done[0])


def _codes_in(code: Any) -> Iterator[Any]:
    yield code
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _codes_in(constant)
