"""Find every value that a function can see without being given it, and check that these values are unchanged. In: a
function, objects. Out: `Walk`, `compile_guards`. Does not know traces or replays.

A walk visits the names in the function's closure, defaults and globals, its `self`, the objects among its arguments,
and everything that can be reached from there: attributes, entries of lists and dicts, other functions of the user's.
Numbers, strings and arrays are guarded by value, lists and dicts by content, other objects by identity. A tensor is
found again by its path, so the next call reads another tensor that was put in the same place. Attributes that the code
names are visited first; the rest is visited while there are fewer than `MOST_BINDINGS` values. The code of libraries is
assumed not to change.

The result of the walk is one list of bindings. A capture adds those that the function does not see by itself:
arguments, tensors that it cannot reach, gradients. `compile_guards` generates one Python function that reads and
compares all of them; each call runs it, and it finds all tensors of the call. For the 58 values of
`benchmarks/dispatch.py`, measured in the same minute, this takes 2.5 us of the 19 us of a call; a loop over the list
took 10.2 us. The generated function does not hold the `self` of a method or anything that leads to it: it starts from
the `self` of each call.
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
from glassgrad.compiler.graph.uop import UOp
from glassgrad.jit.plain_values import (ARRAY, ATTRIBUTE, CELL, CLASS_ENTRY, CONTENT, CONTEXT, ENTRY, ENVIRONMENT, GONE,
                                        HAS_GRADIENT, ITEM, MEMBER, MISSING, PART, PLAIN, PROGRESS, SIZE, Binding,
                                        Increment, Way, expression_names, is_array, is_plain, iterated, same)
from glassgrad.tensor.jit_access import GRADIENT_SLOT, WANTED_SLOT, wants_gradient
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
    """Every value that a function can see, as one list of bindings, in which the holder of a value comes before it."""

    def __init__(self, function: Any, objects: Sequence[Any] = (), instance: Any = None):
        self.bindings: list[Binding] = []
        self.tensors: dict[Tensor, str] = {}             # with their paths
        self.read: set[str] = set()                      # names that its code reads for more than to increment them
        self.instance = instance                         # what leads to it must not be kept alive
        self.number: dict[int, int] = {}                 # of the binding of each object visited or waiting, by id
        self._known: set[tuple[int, Any]] = set()        # (id of a holder, which a binding keeps alive; name)
        self._named: set[str] = set()                    # names that occur in the code of functions
        self._waiting: list[tuple[Any, str]] = []        # (object, path)
        self._unnamed: dict[str, list[tuple[Any, str]]] = {}      # the same, by attribute names that no code uses yet
        self._part(None, "", function, "the function")
        for thing in objects:
            self._part(None, "", thing, type(thing).__name__)
        if instance is not None:
            self._part(None, "instance", instance, type(instance).__name__)
        self._visit_waiting()
        if len(self._known) > MOST_BINDINGS:
            raise JitError("this function can see too much to be watched",
                           given=f"more than {MOST_BINDINGS} values in its closure, globals and objects",
                           expected="a function that sees its model and little else",
                           fix="pass the data as arguments, as tensors")
        read = set(self.read)
        self._visit_waiting(all_names=True)
        self.read = read

    def changed(self) -> Iterator[tuple[Binding, Any]]:
        """Yield the bindings whose value has changed since the walk, each with its present value."""
        for binding in self.bindings:
            if binding.way is not PART:
                now = binding.way.read(binding.holder, binding.name)
                if not same(now, binding.value):
                    yield binding, now

    def include(self, way: Way, holder: Any, name: Any, value: Any, path: str) -> None:
        """Add one more value for each call to read and compare: a tensor that the function does not see by itself."""
        self.number.setdefault(id(value), len(self.bindings))
        self.bindings.append(Binding(way, holder, name, value, path))

    def _add(self, way: Way, holder: Any, name: Any, path: str, used: str | None = None) -> None:
        """Add a binding, and queue its value to be visited. If an attribute name is given as `used` and no code uses
        that name, its value is visited last."""
        key = (id(holder), name if way.kept is None else way)
        if key in self._known:                              # two functions see one global
            return
        self._known.add(key)
        value = way.read(holder, name)
        if way.kept is not None and value is not GONE:
            value = way.kept(value)
        is_new = id(value) not in self.number
        self.include(way, holder, name, value, path)
        if is_new and way.kept is None and value is not GONE and not is_plain(value):
            self._visit_later(value, path, used)

    def _hold(self, holder: Any, text: str, value: Any) -> None:
        """Add a read-only part of an object, such as the cell of a variable; it needs no comparison. `text` is an
        expression that reads it from its holder, {0}; if it is empty, the part itself is kept."""
        if id(value) not in self.number:
            self.include(PART, holder, text, value, "")

    def _part(self, holder: Any, text: str, value: Any, path: str) -> None:
        """Add a read-only part of an object, and queue it to be visited."""
        if id(value) not in self.number and not is_plain(value):
            self._hold(holder, text, value)
            self._visit_later(value, path)

    # -- visiting ------------------------------------------------------------------------------------------------------
    def _visit_later(self, thing: Any, path: str, used: str | None = None) -> None:
        """Queue an object to be visited. If it was found in an attribute whose name, `used`, no code uses so far, it
        waits until all others were visited."""
        named = used is None or used in self._named
        (self._waiting if named else self._unnamed.setdefault(str(used), [])).append((thing, path))

    def _visit_waiting(self, all_names: bool = False) -> None:
        """Visit the queued objects; with `all_names`, also those in attributes whose names no code uses."""
        while len(self._known) <= MOST_BINDINGS:
            if all_names and self._unnamed and not self._waiting:
                self._waiting = self._unnamed.popitem()[1]
            if not self._waiting:
                return
            self._visit(*self._waiting.pop())

    def _visit(self, thing: Any, path: str) -> None:
        kind = type(thing)
        if issubclass(kind, Tensor):
            self.tensors[thing] = path
        elif kind is types.FunctionType:
            self._visit_function(thing)
        elif kind in _PARTS:
            for name in _PARTS[kind]:
                self._part(thing, f"{{0}}.{name}", getattr(thing, name), path)
        elif issubclass(kind, type):
            self._visit_class(thing)
        elif issubclass(kind, (list, tuple, dict, set, frozenset, deque)):
            self._visit_container(thing, path)
        elif is_array(thing):
            if _is_small_array(thing):
                self._add(ARRAY, thing, "", f"the content of {path}")
        elif hasattr(kind, "__next__") and not hasattr(thing, "__dict__") or issubclass(kind, random.Random):
            self._add(PROGRESS, thing, "", f"how far {path} has come")
            for i, part in enumerate(iterated(thing)):
                self._part(thing, f"iterated({{0}})[{i}]", part, path)
        elif kind is contextvars.ContextVar:
            self._add(CONTEXT, thing, "", path)
        elif hasattr(kind, "__wrapped__") or "__wrapped__" in getattr(thing, "__dict__", ()):
            self._part(thing, "{0}.__wrapped__", thing.__wrapped__, path)       # a jit, a cache, a decorator's object
        elif kind is not types.ModuleType and _is_open(kind):
            self._visit_object(thing, path)

    def _visit_function(self, function: Any) -> None:
        if not _is_user_code(function.__module__):
            return
        used = _names_used(function.__code__)
        self.read |= used.read
        self._named |= used.names
        for name in sorted(self._unnamed.keys() & used.names):
            self._waiting += self._unnamed.pop(name)
        for i, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or ())):
            self._hold(function, f"{{0}}.__closure__[{i}]", cell)
            self._add(CELL, cell, "cell_contents", name)
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
                self._add(ATTRIBUTE, function, name, f"{function.__name__}.{name}")
        if used.names & {"environ", "getenv", "environb"}:
            self._add(ENVIRONMENT, None, "", "the environment")

    def _add_globals(self, space: dict[str, Any], names: Set[str], path: str = "") -> None:
        """Add the globals of a module whose names occur in code."""
        self._hold(None, "", space)
        for name in sorted(space.keys() & names):
            self._add(MEMBER, space, name, path + name)

    def _visit_class(self, cls: Any) -> None:
        if not _is_user_code(cls.__module__):
            return
        named, entries = cls.__name__, vars(cls)
        self._hold(cls, "{0}.__dict__", entries)
        self._add(SIZE, entries, "", f"the number of {named}'s attributes")
        for name, value in list(entries.items()):
            is_code = isinstance(value, (types.FunctionType, staticmethod, classmethod, property))
            dunder = name.startswith("__")
            if is_code or not (dunder or isinstance(value, types.MemberDescriptorType)):
                self._add(CLASS_ENTRY, cls, name, f"{named}.{name}",
                          None if dunder and name not in _NOT_IMPLIED else name)
        for i, base in enumerate(cls.__bases__):
            self._part(cls, f"{{0}}.__bases__[{i}]", base, base.__name__)

    def _visit_container(self, thing: Any, path: str) -> None:
        is_dict, is_set = isinstance(thing, dict), isinstance(thing, (set, frozenset))
        values = list(thing.values()) if is_dict else list(thing)
        if len(values) > _LONG and all(map(is_plain, values)) or is_set:
            self._add(CONTENT, thing, "", path)
            return
        if not isinstance(thing, tuple):
            self._add(SIZE, thing, "", f"the length of {path}")
        large = len(values) > _LARGE
        if large:
            self._add(CONTENT, thing, "", path)
        way = ENTRY if is_dict and type(thing) is not dict else ITEM
        for name, value in zip(list(thing) if is_dict else range(len(thing)), values):
            if not large or isinstance(value, Tensor):
                self._add(way, thing, name, f"{path}[{name!r}]")

    def _visit_object(self, thing: Any, path: str) -> None:
        # attributes that kernels do not depend on, because they read a tensor instead (an optimizer's learning rate)
        unwatched = ("__weakref__", "__dict__", *getattr(type(thing), "__jit_unwatched__", ()))
        ours = not _is_user_code(type(thing).__module__)     # our code is not visited: all attributes count as used
        own = getattr(thing, "__dict__", None)
        if type(own) is dict:
            self._hold(thing, "{0}.__dict__", own)
            self._add(SIZE, own, "", f"the number of {path}'s attributes")
            for name in list(own):
                if name not in unwatched:
                    self._add(MEMBER, own, name, f"{path}.{name}", None if ours else str(name))
        for base in type(thing).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in unwatched and hasattr(thing, name):
                    self._add(ATTRIBUTE, thing, name, f"{path}.{name}")
        if not ours:
            self._part(None, "", type(thing), path)


class Stale(Exception):
    """A capture does not fit this call. The message says which value has changed that the trace relied on."""


def compile_guards(walk: Walk, tensors: Sequence[Tensor] = (), own: int = 0, graded: Sequence[int] = (),
             bound: Sequence[tuple[Binding, Any]] = ()) -> \
        Callable[[Any, Sequence[Any], Sequence[Any]], tuple[list[Tensor], bool, list[Any]]]:
    """Generate the function `check(instance, arguments, left)`, which compares everything that a walk found, and raises
    `Stale` if something has changed. `instance` is the `self` of the call; `left` are the nodes and gradients that the
    last call left.

    It returns three values: the current tensors in the place of `tensors`; whether the nodes of the first `own` of
    them, and the gradients of those numbered in `graded`, are the ones in `left`; and the holders of the names that
    each call binds. `bound` has these names with their new values."""
    names: dict[str, Any] = {"same": same, "MISSING": MISSING, "Stale": Stale, **expression_names}
    counters = {id(b) for b, value in bound if isinstance(value, Increment)}
    lines, why = list[str](), list[str]()                  # the function, and what `Stale` says in each of its lines
    for number, b in enumerate(walk.bindings):
        lines += _comparison(walk, number, id(b) in counters, names)
        why += [f"{b.path} is no longer {_shown(b.value)}"] * (len(lines) - len(why))
    found = [f"x{walk.number[id(t)]}" for t in tensors]
    state = [f"{t}.uop" for t in found[:own]] + [f"{found[i]}.{GRADIENT_SLOT}" for i in graded]
    steady = " and ".join([f"{now} is left[{i}]" for i, now in enumerate(state)]) or "True"
    holders = ", ".join([f"x{walk.number[id(b.holder)]}" for b, _ in bound])
    lines.append(f"return [{', '.join(found)}], {steady}, [{holders}]")
    text = ("def check(instance, arguments, left):\n    try:\n        " + "\n        ".join(lines) + "\n"
            "    except MISSING as error:\n"
            "        raise Stale(why[error.__traceback__.tb_lineno - 3]) from None\n")
    names["why"] = why
    exec(compile(text, "<guards>", "exec"), names)
    check: Callable[[Any, Sequence[Any], Sequence[Any]], Any] = names["check"]
    return check


def _comparison(walk: Walk, number: int, is_counter: bool, names: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that read the value of a binding, given by number, and compare it. Objects that the lines refer
    to are added to `names`. Of a counter only the type is compared."""
    way, holder, name, value, _ = walk.bindings[number]
    source = f"x{walk.number.get(id(holder))}"
    if way is PART and not name:
        names[f"x{number}"] = value
        return
    shown = repr(name) if type(name) in (str, int) else _constant(name, names)
    text = name.format(source) if way is PART else way.expression.format(source, shown)
    if is_counter:
        test = f"type({text}) is {type(value).__name__}"
    elif value is GONE:
        test = f"{_constant(way, names)}.read({source}, {name!r}) is GONE"
    elif way.kept is not None or is_plain(value):
        kept = _constant(value, names)
        of_texts = isinstance(value, (set, frozenset)) and all(type(v) is str for v in value)
        exact = of_texts or way in (SIZE, HAS_GRADIENT)              # equal only if the types are
        quickly = f"{text} == {kept} or " if exact else f"{text} is {kept} or " if way.kept is None else ""
        test = f"{quickly}same({text}, {kept})"
    elif walk.number[id(value)] != number:
        test = f"{text} is x{walk.number[id(value)]}"
    else:
        yield f"x{number} = {text}"
        if way is PART:
            return
        test = _recognition(value, f"x{number}", walk.instance is not None, names)
    yield f"if not ({test}): raise LookupError"


def _recognition(value: Any, variable: str, weakly: bool, names: dict[str, Any]) -> str:
    """Return the comparison of an object that is not a plain value: by class if its content is compared as well, else
    by identity. With `weakly`, the generated function must not keep the object alive."""
    kind = type(value)
    by_class = f"type({variable}) is {_constant(kind, names)}"
    if issubclass(kind, Tensor):
        return f"{by_class} and {variable}.{WANTED_SLOT} is {wants_gradient(value)}"
    has_content = issubclass(kind, (list, dict, tuple, deque, set, frozenset)) or _is_small_array(value)
    if not weakly or issubclass(kind, (type, types.ModuleType)):
        return f"{variable} is {_constant(value, names)}" + (f" or {by_class}" if has_content else "")
    if has_content:
        return by_class
    try:
        return f"{variable} is not None and {variable} is {_constant(weakref.ref(value), names)}()"
    except TypeError:                            # no weak reference to it: by class, if its attributes are compared too
        return by_class if _is_open(kind) else f"{variable} is {_constant(value, names)}"


def _constant(value: Any, names: dict[str, Any]) -> str:
    """Give an object a name in the generated function."""
    name = f"k{len(names)}"
    names[name] = value
    return name


def _shown(value: Any) -> str:
    if isinstance(value, UOp):
        return "what it was"
    return repr(value) if isinstance(value, PLAIN) and len(repr(value)) < 60 else f"the {type(value).__name__} it was"


def _is_small_array(value: Any) -> bool:
    return is_array(value) and value.nbytes <= _LARGEST_ARRAY


def _is_user_code(module: str | None) -> bool:
    """Return whether a module's code may change between two calls: it belongs neither to Python nor to glassgrad, NumPy
    or PyTorch."""
    root = (module or "").split(".")[0]
    return root not in ("glassgrad", "numpy", "torch", "builtins") and (
        root == "__main__" or root not in sys.stdlib_module_names)


def _is_open(kind: type) -> bool:
    """Return whether the attributes of an object of this class are visited."""
    root, _, rest = (kind.__module__ or "").partition(".")
    if root == "glassgrad":
        return rest.split(".")[0] not in _CLOSED_PARTS
    return root in _OPEN_STANDARD or issubclass(kind, threading.local) or \
        _is_user_code(root) and root not in _TEST_TOOLS


class _CodeNames(NamedTuple):
    """Names that code uses: its globals, the modules it imports, and all its names, those of functions inside it
    included; and the names that it reads for more than to increment them (`self.step += 1`)."""
    globals: set[str]
    imports: set[str]
    names: set[str]
    read: set[str]


@functools.lru_cache(maxsize=1024)
def _names_used(code: Any) -> _CodeNames:
    texts = [text for text in code.co_consts if isinstance(text, str)]                # getattr(model, "bias")
    found = _CodeNames(set(), set(), {*code.co_names, *texts}, set())
    rows = list(dis.get_instructions(code))
    for i, row in enumerate(rows):
        if row.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            found.globals.add(row.argval)
        if row.opname == "IMPORT_NAME":
            found.imports.add(row.argval)
        if row.opname.startswith("LOAD") and isinstance(row.argval, str) and not row.opname.startswith("LOAD_CONST") \
                and not _is_incremented(row.argval, rows[i + 1:i + 7]):
            found.read.add(row.argval)
    for inner in code.co_consts:
        if hasattr(inner, "co_code"):
            for names, others in zip(found, _names_used(inner)):
                names |= others
    return found


def _is_incremented(name: str, after: Sequence[dis.Instruction]) -> bool:
    """Return whether the instructions after a name is loaded add to it once and store it, as in `s.n += 1`. Not so in
    `s.n = 1 - s.n`."""
    end = next((i for i, row in enumerate(after) if row.opname.startswith("STORE") and row.argval == name), 0)
    done = ["" if row.opname.startswith(_FETCHES) or row.argrepr == "[]" else
            _SUMS_OF_3_10.get(row.opname) or row.argrepr or row.opname for row in after[:end]]
    sums = [text for text in done if text]
    into = done and not done[0] and after[0].opname.startswith(("LOAD_ATTR", "BINARY"))      # s.n.parts, table[s.n]
    return not into and (sums in (["+"], ["+="]) or sums in (["-"], ["-="]) and not done[0])
