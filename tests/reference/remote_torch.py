"""PyTorch in another process, for a Python that cannot load it: an emulated one, where PyTorch would be slow and large.

    REMOTE_TORCH=/usr/bin/python3 python -c 'import remote_torch; remote_torch.install(); import torch; ...'

`install` makes `import torch` give modules whose attributes live in a second process, which the Python named by
REMOTE_TORCH runs. Numbers, text, tuples, lists, dicts and NumPy arrays go over by value; everything else stays there,
and here is a `Remote` that passes on what is done to it. A function that is passed over is called back. What needs one
process for both does not work: memory that is shared, DLPack, and classes that derive from PyTorch's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import operator
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import types
import weakref
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

PLAIN = {type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), np.ndarray}
MANY: dict[type, str] = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset"}
BACK = {name: kind for kind, name in MANY.items()}


class Channel:
    """Messages between the two processes: pickled, behind their length."""

    def __init__(self, connection: socket.socket):
        self.stream = connection.makefile("rwb")

    def send(self, *message: Any) -> None:
        packed = pickle.dumps(message, 4)
        self.stream.write(struct.pack("<q", len(packed)) + packed)
        self.stream.flush()

    def receive(self) -> Any:
        head = self.stream.read(8)
        if len(head) < 8:
            raise EOFError("the other process has ended")
        return pickle.loads(self.stream.read(struct.unpack("<q", head)[0]))


def encode(value: Any, other: Callable[[Any], tuple[Any, ...]]) -> Any:
    """The value in plain types, tuples being (what it is, ...); `other` encodes what is none of them."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, (np.generic, np.dtype)) or isinstance(value, type) and kind_is_shared(value):
        return value
    if kind in MANY:
        return MANY[kind], [encode(item, other) for item in value]
    if kind is dict:
        return "dict", [(encode(key, other), encode(item, other)) for key, item in value.items()]
    if kind is slice:
        return "slice", [encode(item, other) for item in (value.start, value.stop, value.step)]
    return other(value)


def kind_is_shared(value: type) -> bool:
    return value.__module__ in ("builtins", "numpy")


def decode(value: Any, other: Callable[..., Any]) -> Any:
    if type(value) is not tuple:
        return value
    what, rest = value[0], value[1]
    if what in BACK:
        return BACK[what](decode(item, other) for item in rest)
    if what == "dict":
        return {decode(key, other): decode(item, other) for key, item in rest}
    if what == "slice":
        return slice(*(decode(item, other) for item in rest))
    return other(*value)


class Side:
    """What both processes do: wait for a result, and answer meanwhile what the other one asks for."""
    channel: Channel
    encode: Any            # a value as it is sent,
    decode: Any            # and as it is received
    answer: Any            # what is done for a message that is no result

    def result(self) -> Any:
        """The result of what the other process was asked for."""
        while True:
            kind, *rest = self.channel.receive()
            if kind == "value":
                return self.decode(rest[0])
            if kind == "error":
                raise decode_error(*rest)
            self.answer(*rest)

    def reply(self, do: Callable[[], Any]) -> None:
        """Send what a function returns, or its error."""
        try:
            result = self.encode(do())
        except Exception as error:
            self.channel.send("error", *encode_error(error))
        else:
            self.channel.send("value", result)


# -- here ------------------------------------------------------------------------------------------------------------

class Client(Side):
    """The second process as this one sees it: `ask` has something done there and returns the result."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        left_out = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH")
        command = [os.environ["REMOTE_TORCH"], os.path.abspath(__file__), str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()],
                                        env={k: v for k, v in os.environ.items() if k not in left_out})
        theirs.close()
        self.channel = Channel(ours)
        self.lock = threading.RLock()
        self.remotes: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self.received: dict[int, int] = {}              # how often the object of a number came over: then it is let go
        self.dead: list[tuple[int, int]] = []
        self.functions: list[Callable[..., Any]] = []

    def encode(self, value: Any) -> Any:
        return encode(value, self.encode_other)

    def encode_other(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, Remote):
            return "object", object.__getattribute__(value, "number")
        if callable(value) and not isinstance(value, type):
            self.functions.append(value)
            return "function", len(self.functions) - 1
        raise TypeError(f"{type(value).__name__} cannot be passed to PyTorch in another process")

    def decode(self, value: Any) -> Any:
        return decode(value, self.decode_other)

    def decode_other(self, what: str, *rest: Any) -> Any:
        if what == "named":
            name, names, values = rest
            return namedtuple(name, names)(*(self.decode(value) for value in values))       # type: ignore[misc]
        number = rest[0]
        found = self.remotes.get(number)
        if found is None:
            found = self.remotes[number] = Remote(number)
            weakref.finalize(found, self.let_go, number)
        self.received[number] = self.received.get(number, 0) + 1
        return found

    def let_go(self, number: int) -> None:
        self.dead.append((number, self.received.pop(number)))

    def ask(self, what: str, *args: Any) -> Any:
        with self.lock:
            dead, self.dead = self.dead, []
            self.channel.send("request", what, self.encode(args), dead)
            return self.result()

    def answer(self, number: int, args: Any, kwargs: Any) -> None:
        """A function of this process is called back."""
        self.reply(lambda: self.functions[number](*self.decode(args), **self.decode(kwargs)))


def encode_error(error: Exception) -> tuple[str, str]:
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"), str(error)


def decode_error(name: str, message: str) -> Exception:
    import builtins
    found: Exception = getattr(builtins, name)(message)
    return found


client: Client | None = None


def ask(what: str, *args: Any) -> Any:
    """Have something done by PyTorch's process, which starts now if it does not run yet."""
    global client
    if client is None:
        client = Client()
    return client.ask(what, *args)


class Remote:
    """An object of the other process. Attributes, calls, operators and tests of its type are passed on."""

    __array_priority__ = 1000
    number: int

    def __init__(self, number: int):
        object.__setattr__(self, "number", number)

    def __getattr__(self, name: str) -> Any:
        return ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        ask("set", self, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return ask("call", self, args, kwargs)

    def __iter__(self) -> Any:
        return iter(ask("list", self))

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and bool(ask("isinstance", value, self))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(ask("array", self), dtype)

    def __enter__(self) -> Any:
        return ask("get", self, "__enter__")()

    def __exit__(self, *error: Any) -> None:
        ask("get", self, "__exit__")(None, None, None)

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "number"))

    def __repr__(self) -> str:
        return str(ask("repr", self))

    def __format__(self, spec: str) -> str:
        return str(ask("format", self, spec))

    __str__ = __repr__


BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
OTHERS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "getitem", "setitem", "delitem",
          "contains", "bool", "int", "float", "complex", "len", "index")


def add_operators() -> None:
    def special(name: str, turned: bool = False) -> Callable[..., Any]:
        return lambda *args: ask("operator", name, *(args[::-1] if turned else args))

    for name in (*BINARY, *OTHERS):
        setattr(Remote, f"__{name.strip('_')}__", special(name))
    for name in BINARY:
        setattr(Remote, f"__r{name.strip('_')}__", special(name, turned=True))
        setattr(Remote, f"__i{name.strip('_')}__", special("i" + name.strip("_")))


add_operators()


class RemoteModule(types.ModuleType):
    """A module of the other process; what was read of it is kept."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        value = ask("get", ask("module", self.__name__), name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """What `import torch` and `import torch.nn.functional` find."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        ask("module", spec.name)                        # ImportError, if there is none
        return RemoteModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """From now on, `import torch` imports it in the other process."""
    sys.meta_path.insert(0, Finder())


# -- there -----------------------------------------------------------------------------------------------------------

class Server(Side):
    """The process that has PyTorch: does what the other one asks for, one request after another."""

    def __init__(self, channel: Channel):
        self.channel = channel
        self.objects: dict[int, list[Any]] = {}         # by `id`: the object, and how often it was passed over

    def encode(self, value: Any) -> Any:
        return encode(value, self.encode_other)

    def encode_other(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            return str.__str__(value)                   # type: ignore[return-value]
        if isinstance(value, tuple):
            names = getattr(type(value), "_fields", None) or getattr(type(value), "__match_args__", ())
            items = [self.encode(item) for item in value]
            return ("named", type(value).__name__, names, items) if names else ("tuple", items)
        entry = self.objects.setdefault(id(value), [value, 0])
        entry[1] += 1
        return "object", id(value)

    def decode(self, value: Any) -> Any:
        return decode(value, self.decode_other)

    def decode_other(self, what: str, number: int) -> Any:
        if what == "object":
            return self.objects[number][0]

        def function(*args: Any, **kwargs: Any) -> Any:
            self.channel.send("call", number, self.encode(args), self.encode(kwargs))
            return self.result()
        return function

    def answer(self, what: str, args: Any, dead: list[tuple[int, int]]) -> None:
        """A request of the other process."""
        self.reply(lambda: self.do(what, *self.decode(args)))
        for number, times in dead:
            self.let_go(number, times)

    def let_go(self, number: int, times: int) -> None:
        self.objects[number][1] -= times
        if self.objects[number][1] == 0:
            del self.objects[number]

    def do(self, what: str, *args: Any) -> Any:
        if what == "operator":
            builtin = {"bool": bool, "int": int, "float": float, "complex": complex, "len": len}.get(args[0])
            return (builtin or getattr(operator, args[0]))(*args[1:])
        if what == "call":
            return args[0](*args[1], **args[2])
        if what == "module":
            return importlib.import_module(args[0])
        if what == "set":
            return setattr(*args)
        return {"get": getattr, "list": list, "isinstance": isinstance, "array": np.asarray, "repr": repr,
                "format": format}[what](*args)


if __name__ == "__main__":
    try:
        Server(Channel(socket.socket(fileno=int(sys.argv[1])))).result()
    except EOFError:
        pass
