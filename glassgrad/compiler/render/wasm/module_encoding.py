"""WebAssembly modules and their encoding. In: functions, as lines of `Code`. Out: a module as bytes, or as text.

A module imports the memory that all modules share, and exports its last function. Lines are expressions without a value
(local.set, stores, calls) and blocks: loops, and branches with one or two bodies. Does not know kernels.
(WebAssembly Core Specification 2.0, section 5.5.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

from glassgrad.compiler.render.wasm.instruction_encoding import (TYPES, Code, CodeLocal, Numbers, encode, splat_load,
                                                                 text_of, unsigned)

# Conventions between a module and its engine:
MEMORY = ("env", "memory")       # the module and the name under which the memory is imported
RUN = "run"  # the exported function: without parameters, which would take most of the time of a short call
SCRATCH_AT, ARGS_AT = 16, 24     # addresses of: the scratch memory's address; the table of arguments

MOST_NESTED = 24                 # the depth of nested expressions


@dataclass
class CodeBlock:
    """"loop": the body, repeated by a br_if at its end. "if": the body if the condition is not 0, otherwise
    `otherwise`."""
    kind: str
    condition: Code | None
    body: list[Line]
    otherwise: list[Line] = field(default_factory=list)


Line = Union[Code, CodeBlock]  # noqa: UP007 - it is evaluated, on Python 3.10 too


@dataclass
class CodeFunction:
    """A function without results."""
    name: str
    params: Sequence[CodeLocal]
    locals: Sequence[CodeLocal]
    body: list[Line]

    def ordered(self) -> list[CodeLocal]:
        """The locals that are not params, sorted by type, so that each type is declared once."""
        return sorted(self.locals, key=lambda local: list(TYPES).index(local.type))


@dataclass
class CodeModule:
    """Functions over one imported memory; the last one is exported."""
    functions: list[CodeFunction]

    def binary(self) -> bytes:
        """The module's bytes, as engines take them."""
        functions = {f.name: number for number, f in enumerate(self.functions)}
        types = list(dict.fromkeys(tuple(p.type for p in f.params) for f in self.functions))
        last = self.functions[-1].name
        memory = b"".join([_name(word) for word in MEMORY]) + b"\x02\x00" + unsigned(0)
        sections = [
            (1, _list([b"\x60" + _list([TYPES[t] for t in params]) + unsigned(0) for params in types])),
            (2, _list([memory])),
            (3, _list([unsigned(types.index(tuple(p.type for p in f.params))) for f in self.functions])),
            (7, _list([_name(last) + b"\x00" + unsigned(functions[last])])),
            (10, _list([_sized(_function_bytes(f, functions)) for f in self.functions])),
        ]
        return b"\0asm\x01\0\0\0" + b"".join([bytes((number,)) + _sized(content) for number, content in sections])

    def text(self) -> str:
        """The module as text, from which `wat2wasm` makes the same bytes."""
        lines = [f'(module (import "{MEMORY[0]}" "{MEMORY[1]}" (memory 0))']
        for f in self.functions:
            export = f' (export "{f.name}")' if f is self.functions[-1] else ""
            params = "".join([f" (param ${p.name} {p.type})" for p in f.params])
            lines.append(f"(func ${f.name}{export}{params}")
            declared = [f"(local ${local.name} {local.type})" for local in f.ordered()]
            lines += ["  " + " ".join(declared[i:i + 4]) for i in range(0, len(declared), 4)]
            _write_lines(f.body, 1, lines)
            lines[-1] += ")"
        return "\n".join(lines) + ")\n"


# -- bytes ---------------------------------------------------------------------------------------------------
def _list(items: Sequence[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


def _sized(content: bytes) -> bytes:
    return unsigned(len(content)) + content


def _name(word: str) -> bytes:
    return _sized(word.encode())


def _function_bytes(function: CodeFunction, functions: dict[str, int]) -> bytes:
    ordered = function.ordered()
    numbers = Numbers({local: i for i, local in enumerate([*function.params, *ordered])}, functions)
    counts = Counter(local.type for local in ordered)
    out = bytearray(_list([unsigned(count) + TYPES[type_] for type_, count in counts.items()]))
    _encode_lines(function.body, numbers, out)
    return bytes(out) + b"\x0b"


def _encode_lines(lines: Sequence[Line], numbers: Numbers, out: bytearray) -> None:
    for line in lines:
        if isinstance(line, Code):
            encode(line, numbers, out)
            continue
        if line.condition is not None:
            encode(line.condition, numbers, out)
        out += b"\x03\x40" if line.kind == "loop" else b"\x04\x40"      # a block without a value
        _encode_lines(line.body, numbers, out)
        if line.otherwise:
            out.append(0x05)
            _encode_lines(line.otherwise, numbers, out)
        out.append(0x0b)


# -- text ----------------------------------------------------------------------------------------------------
def _write_lines(lines: Sequence[Line], depth: int, out: list[str]) -> None:
    space = "  " * depth
    for line in lines:
        if isinstance(line, Code):
            out.append(space + text_of(line))
        elif line.kind == "loop":
            out.append(f"{space}(loop")
            _write_lines(line.body, depth + 1, out)
            out[-1] += ")"
        else:
            assert line.condition is not None
            out.append(f"{space}(if {text_of(line.condition)}")
            for word, body in (("then", line.body), ("else", line.otherwise)):
                if body or word == "then":
                    out.append(f"{space}  ({word}")
                    _write_lines(body, depth + 2, out)
                    out[-1] += ")"
            out[-1] += ")"


# -- fewer locals --------------------------------------------------------------------------------------------
def nest(lines: list[Line]) -> tuple[list[Line], set[CodeLocal]]:
    """Remove locals that are set, read once, and read in the next line, by writing their expressions where they are
    read. Returns the lines, and the remaining locals.

        (local.set $v1 (f32.load (local.get $p)))
        (local.set $v2 (f32.add (local.get $v1) (local.get $x)))    ->
        (local.set $v2 (f32.add (f32.load (local.get $p)) (local.get $x)))
    """
    reads: Counter[CodeLocal] = Counter()
    sets: Counter[CodeLocal] = Counter()
    _count(lines, reads, sets)
    once = {local for local, count in reads.items() if count == 1 and sets[local] == 1}
    nested = _nest(lines, once)
    left: Counter[CodeLocal] = Counter()
    written: Counter[CodeLocal] = Counter()
    _count(nested, left, written)
    return nested, left.keys() | written.keys()


def _count(lines: Sequence[Line], reads: Counter[CodeLocal], sets: Counter[CodeLocal]) -> None:
    stack: list[Line] = list(lines)
    while stack:
        line = stack.pop()
        if isinstance(line, CodeBlock):
            stack += [*line.body, *line.otherwise]
            if line.condition is not None:
                stack.append(line.condition)
            continue
        stack += line.operands
        if line.name == "local.get":
            reads[line.immediate] += 1
        elif line.name == "local.set":
            sets[line.immediate] += 1


def _nest(lines: Sequence[Line], once: set[CodeLocal]) -> list[Line]:
    out: list[Line] = []
    for line in lines:
        if isinstance(line, CodeBlock):
            line = CodeBlock(line.kind, line.condition, _nest(line.body, once), _nest(line.otherwise, once))
        code = line if isinstance(line, Code) else line.condition
        while code is not None and out and isinstance(out[-1], Code) and out[-1].name == "local.set" and \
                out[-1].immediate in once:
            changed = _replace(code, out[-1].immediate, out[-1].operands[0])
            if changed is code or _depth(changed) > MOST_NESTED:
                break
            out.pop()
            code = changed
        if isinstance(line, CodeBlock):
            line.condition = code
        else:
            assert code is not None
            line = code
        out.append(line)
    return out


def _replace(code: Code, local: CodeLocal, value: Code) -> Code:
    """Replace a local by a value in an expression; the same object if it does not read the local."""
    if code.name == "local.get" and code.immediate == local:
        return value
    for at, operand in enumerate(code.operands):
        new = _replace(operand, local, value)
        if new is not operand:
            return splat_load(Code(code.name, (*code.operands[:at], new, *code.operands[at + 1:]), code.immediate))
    return code


def _depth(code: Code) -> int:
    return 1 + max([_depth(operand) for operand in code.operands], default=0)
