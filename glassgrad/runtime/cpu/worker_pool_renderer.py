"""Write the worker pool's program as LLVM IR or as C. In: `PROGRAM`. Out: text for a compiler.

llvmlite compiles IR, where there is no C compiler; a C compiler compiles C, where there is no llvmlite. Both writers go
through the same syntax tree, statement by statement; in IR each variable has a place on the stack.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from glassgrad.base.errors import Bug
from glassgrad.runtime.cpu.worker_pool_source import CONSTANTS, PROGRAM

__all__ = ["c_text", "ir_text"]

_C_OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.BitAnd: "&", ast.BitOr: "|",
                ast.LShift: "<<", ast.RShift: ">>", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=",
                ast.Gt: ">", ast.GtE: ">="}
_IR_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "sdiv", ast.BitAnd: "and",
                 ast.BitOr: "or", ast.LShift: "shl", ast.RShift: "ashr", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "slt",
                 ast.LtE: "sle", ast.Gt: "sgt", ast.GtE: "sge"}

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
    """One function as IR. The variable x is kept at %x.at; control never falls from one block into the next."""

    def __init__(self, function: ast.FunctionDef, pause: str):
        parameters = _parameters(function)
        self.pause, self.lines, self.count = pause, ["entry:"], 0
        for name in dict.fromkeys((*parameters, *_assigned(function))):
            self.put(f"%{name}.at = alloca i64")
        for name in parameters:
            self.put(f"store i64 %{name}, ptr %{name}.at")
        self.block(function.body)
        self.put("unreachable")
        linkage = "" if function.name.startswith("glassgrad_") else "internal "
        body = "".join(line + "\n" if line.endswith(":") else f"  {line}\n" for line in self.lines)
        given = ", ".join(f"i64 %{name}" for name in parameters)
        self.text = f"define {linkage}i64 @{function.name}({given}) nounwind {{\n{body}}}\n"

    def put(self, line: str) -> str:
        """Add a line; where it begins with @, the name of the value that it makes."""
        self.count += 1
        name = f"%v{self.count}"
        self.lines.append(line.replace("@", name, 1) if line.startswith("@") else line)
        return name

    def block(self, statements: list[ast.stmt], label: str = "", then: str = "") -> None:
        """Statements, as a block of this name, after which `then` comes."""
        self.lines += [f"{label}:"] if label else []
        for statement in statements:
            self.statement(statement)
        if then:
            self.put(f"br label %{then}")

    def statement(self, s: ast.stmt) -> None:
        self.count += 1
        test, body, other, out = (f"{name}{self.count}" for name in ("test", "body", "else", "out"))
        if isinstance(s, ast.Assign):
            self.put(f"store i64 {self.value(s.value)}, ptr %{ast.unparse(s.targets[0])}.at")
        elif isinstance(s, ast.Expr):
            self.value(s.value)
        elif isinstance(s, ast.Return) and s.value is not None:
            self.put(f"ret i64 {self.value(s.value)}")
            self.block([], out)                  # nothing leads to what is written behind a return
        elif isinstance(s, ast.While):
            self.block([], "", test)
            self.block([], test)
            self.put(f"br i1 {self.condition(s.test)}, label %{body}, label %{out}")
            self.block(s.body, body, test)
            self.block([], out)
        else:
            assert isinstance(s, ast.If)
            self.put(f"br i1 {self.condition(s.test)}, label %{body}, label %{other}")
            self.block(s.body, body, out)
            self.block(s.orelse, other, out)
            self.block([], out)

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
            return str(CONSTANTS[node.id]) if node.id in CONSTANTS else self.put(f"@ = load i64, ptr %{node.id}.at")
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
