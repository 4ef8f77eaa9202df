"""Write the worker pool's program as LLVM IR or as C. In: `PROGRAM`. Out: text for a compiler.

llvmlite compiles IR, where there is no C compiler; a C compiler compiles C, where there is no llvmlite. Both writers go
through the same syntax tree, statement by statement. The IR is written in static single assignment, without stack
slots, because it is compiled without optimization passes.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from glassgrad.base.errors import Bug
from glassgrad.runtime.cpu.worker_pool_source import CONSTANTS, PROGRAM

__all__ = ["c_text", "ir_text"]

_C_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.BitAnd: "&", ast.BitOr: "|", ast.LShift: "<<",
                ast.RShift: ">>", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_IR_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and", ast.BitOr: "or", ast.LShift: "shl",
                 ast.RShift: "ashr", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt", ast.LtE: "sle", ast.Gt: "sgt",
                 ast.GtE: "sge"}

# What a program calls besides its own functions: in C as macros, in IR as lines, in which @ stands for a new value.
_C_CALLS = """
#include <stdint.h>
typedef int64_t i64;
#define load(at) __atomic_load_n((i64 *)(at), __ATOMIC_SEQ_CST)
#define load32(at) ((i64) *(int32_t *)(at))
#define store(at, x) __atomic_store_n((i64 *)(at), x, __ATOMIC_SEQ_CST)
#define set(at, x) __atomic_store_n((i64 *)(at), x, __ATOMIC_RELAXED)
#define add(at, x) __atomic_add_fetch((i64 *)(at), x, __ATOMIC_SEQ_CST)
#define exchange(at, x) __atomic_exchange_n((i64 *)(at), x, __ATOMIC_SEQ_CST)
#define launch(f, args, task, scratch) ((void (*)(i64, i64, i64))(f))(args, task, scratch)
#define system(f, a, b, c) ((i64) ((int (*)(i64, i64, i64))(f))(a, b, c))
#if defined(__x86_64__)
#define pause() __builtin_ia32_pause()
#else
#define pause() __asm__ volatile("isb" ::: "memory")
#endif
static i64 exchange_if(i64 at, i64 old, i64 new) {
  __atomic_compare_exchange_n((i64 *)at, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}
"""
_IR_CALLS = {
    "load": ["@ = inttoptr i64 {0} to ptr", "@ = load atomic i64, ptr {p} seq_cst, align 8"],
    "load32": ["@ = inttoptr i64 {0} to ptr", "@ = load i32, ptr {p}, align 4", "@ = sext i32 {p} to i64"],
    "store": ["@ = inttoptr i64 {0} to ptr", "store atomic i64 {1}, ptr {p} seq_cst, align 8"],
    "set": ["@ = inttoptr i64 {0} to ptr", "store atomic i64 {1}, ptr {p} monotonic, align 8"],
    "add": ["@ = inttoptr i64 {0} to ptr", "@ = atomicrmw add ptr {p}, i64 {1} seq_cst, align 8",
            "@ = add i64 {p}, {1}"],
    "exchange": ["@ = inttoptr i64 {0} to ptr", "@ = atomicrmw xchg ptr {p}, i64 {1} seq_cst, align 8"],
    "exchange_if": ["@ = inttoptr i64 {0} to ptr", "@ = cmpxchg ptr {p}, i64 {1}, i64 {2} seq_cst seq_cst, align 8",
                    "@ = extractvalue {{ i64, i1 }} {p}, 0"],
    "launch": ["@ = inttoptr i64 {0} to ptr", "call void {p}(i64 {1}, i64 {2}, i64 {3})"],
    "system": ["@ = inttoptr i64 {0} to ptr", "@ = call i32 {p}(i64 {1}, i64 {2}, i64 {3})", "@ = sext i32 {p} to i64"],
}
_PAUSES = {"x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
           "aarch64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)")}


def _functions() -> list[ast.FunctionDef]:
    return [node for node in ast.parse(PROGRAM).body if isinstance(node, ast.FunctionDef)]


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args]


def _assigned(tree: ast.AST) -> list[str]:
    """The names that a part of the program assigns."""
    stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return list(dict.fromkeys(stored))


# -- C ---------------------------------------------------------------------------------------------------------------
def c_text() -> str:
    """The pool as C, for machines with a C compiler and no llvmlite."""
    parts = [_C_CALLS]
    for function in _functions():
        parameters = ", ".join(f"i64 {name}" for name in _parameters(function))
        static = "" if function.name.startswith("glassgrad_") else "static "
        locals_ = "".join(f"  i64 {name};\n" for name in _assigned(function) if name not in _parameters(function))
        parts.append(f"{static}i64 {function.name}({parameters}) {{\n{locals_}{_c_block(function.body, '  ')}}}\n")
    return "\n".join(parts)


def _c_block(statements: list[ast.stmt], indent: str) -> str:
    return "".join(_c_statement(s, indent) for s in statements)


def _c_statement(s: ast.stmt, indent: str) -> str:
    if isinstance(s, ast.Assign):
        return f"{indent}{ast.unparse(s.targets[0])} = {_c(s.value)};\n"
    if isinstance(s, ast.Expr):
        return f"{indent}{_c(s.value)};\n"
    if isinstance(s, ast.Return) and s.value is not None:
        return f"{indent}return {_c(s.value)};\n"
    if not isinstance(s, (ast.While, ast.If)):
        raise Bug(f"the worker pool's program has a statement that cannot be written: {ast.unparse(s)}")
    word = "while" if isinstance(s, ast.While) else "if"
    text = f"{indent}{word} ({_c(s.test)}) {{\n{_c_block(s.body, indent + '  ')}{indent}}}"
    return text + (f" else {{\n{_c_block(s.orelse, indent + '  ')}{indent}}}\n" if s.orelse else "\n")


def _c(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        return f"({_c(node.left)} {_C_OPERATORS[type(node.op)]} {_c(node.right)})"
    if isinstance(node, ast.Compare):
        return f"({_c(node.left)} {_C_OPERATORS[type(node.ops[0])]} {_c(node.comparators[0])})"
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func)}({', '.join(map(_c, node.args))})"
    if isinstance(node, ast.UnaryOp):
        return f"(-{_c(node.operand)})"
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.Name)
    return f"{CONSTANTS[node.id]}LL" if node.id in CONSTANTS else node.id


# -- LLVM IR ---------------------------------------------------------------------------------------------------------
@lru_cache(maxsize=2)
def ir_text(arch: str) -> str:
    """The pool as LLVM IR for "x86_64" or "aarch64"."""
    declared, pause = _PAUSES[arch]
    return f"declare void {declared}\n\n" + "\n".join(_IrFunction(f, pause).text for f in _functions())


class _IrFunction:
    """One function as IR in static single assignment: `names` maps each variable to its value at this point."""

    def __init__(self, function: ast.FunctionDef, pause: str):
        self.pause, self.lines, self.count = pause, ["entry:"], 0
        self.names = {name: f"%{name}" for name in _parameters(function)}
        self.label = "entry"                    # of the block that lines are added to; empty after a return
        self.block(function.body)
        if self.label:
            self.lines.append("unreachable")
        linkage = "" if function.name.startswith("glassgrad_") else "internal "
        parameters = ", ".join(f"i64 %{name}" for name in _parameters(function))
        body = "".join(line + "\n" if line.endswith(":") else f"  {line}\n" for line in self.lines)
        self.text = f"define {linkage}i64 @{function.name}({parameters}) nounwind {{\n{body}}}\n"

    def put(self, line: str) -> str:
        """Add a line; where it begins with @, the name of the value that it makes."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(line.replace("@", name, 1) if line.startswith("@") else line)
        return name

    def start(self, label: str) -> None:
        """Begin a block."""
        self.label = label
        self.lines.append(f"{label}:")

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign):
            self.names[ast.unparse(s.targets[0])] = self.value(s.value)
        elif isinstance(s, ast.Expr):
            self.value(s.value)
        elif isinstance(s, ast.Return) and s.value is not None:
            self.put(f"ret i64 {self.value(s.value)}")
            self.label = ""
        elif isinstance(s, ast.While):
            self.loop(s)
        else:
            assert isinstance(s, ast.If)
            self.choice(s)

    def loop(self, s: ast.While) -> None:
        """Variables that the body assigns are phis at the test: of their value before, and after a round."""
        self.count += 1
        test, body, out = (f"{name}{self.count}" for name in ("test", "body", "out"))
        before, came_from = dict(self.names), self.label
        self.put(f"br label %{test}")
        self.start(test)
        at, changed = len(self.lines), [name for name in _assigned(s) if name in before]
        for name in changed:
            self.names[name] = self.put("@ = phi i64")
        self.put(f"br i1 {self.condition(s.test)}, label %{body}, label %{out}")
        at_test = dict(self.names)
        self.start(body)
        self.block(s.body)
        for number, name in enumerate(changed):
            again = f", [ {self.names[name]}, %{self.label} ]" if self.label else ""
            self.lines[at + number] += f" [ {before[name]}, %{came_from} ]{again}"
        if self.label:
            self.put(f"br label %{test}")
        self.names = at_test
        self.start(out)

    def choice(self, s: ast.If) -> None:
        """Variables that the two ways leave different are phis afterwards."""
        self.count += 1
        then, other, out = (f"{name}{self.count}" for name in ("then", "else", "end"))
        self.put(f"br i1 {self.condition(s.test)}, label %{then}, label %{other}")
        before, ends = dict(self.names), list[tuple[str, dict[str, str]]]()
        for label, statements in ((then, s.body), (other, s.orelse)):
            self.names = dict(before)
            self.start(label)
            self.block(statements)
            if self.label:
                self.put(f"br label %{out}")
                ends.append((self.label, self.names))
        if not ends:
            return
        self.start(out)
        (first, ours), (last, theirs) = ends[0], ends[-1]
        self.names = {name: ours[name] if ours[name] == theirs[name] else
                      self.put(f"@ = phi i64 [ {ours[name]}, %{first} ], [ {theirs[name]}, %{last} ]")
                      for name in ours if name in theirs}

    def condition(self, node: ast.expr) -> str:
        if isinstance(node, ast.Compare):
            left, right = self.value(node.left), self.value(node.comparators[0])
            return self.put(f"@ = icmp {_IR_OPERATORS[type(node.ops[0])]} i64 {left}, {right}")
        return self.put(f"@ = icmp ne i64 {self.value(node)}, 0")

    def value(self, node: ast.expr) -> str:
        if isinstance(node, ast.Compare):
            return self.put(f"@ = zext i1 {self.condition(node)} to i64")
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left), self.value(node.right)
            return self.put(f"@ = {_IR_OPERATORS[type(node.op)]} i64 {left}, {right}")
        if isinstance(node, ast.UnaryOp):
            return self.put(f"@ = sub i64 0, {self.value(node.operand)}")
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name):
            return str(CONSTANTS[node.id]) if node.id in CONSTANTS else self.names[node.id]
        assert isinstance(node, ast.Call)
        name, arguments = ast.unparse(node.func), [self.value(argument) for argument in node.args]
        if name == "pause":
            return self.put(f"call void {self.pause}")
        if name not in _IR_CALLS:
            return self.put(f"@ = call i64 @{name}({', '.join(f'i64 {a}' for a in arguments)})")
        made = ""
        for line in _IR_CALLS[name]:
            made = self.put(line.format(*arguments, p=made))
        return made
