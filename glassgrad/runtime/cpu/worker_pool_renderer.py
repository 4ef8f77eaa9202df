"""Write the worker pool's program as LLVM IR or as C. In: `PROGRAM`. Out: text for a compiler.

Machines without a C compiler compile the IR with llvmlite, machines without llvmlite compile the C. One writer visits
the syntax tree, and a table per language has the text of each step. In both languages each variable is a stack slot,
each value gets a name, and control flow is labels and jumps.
"""

from __future__ import annotations

import ast

from glassgrad.base.errors import Bug
from glassgrad.runtime.cpu.worker_pool_source import CONSTANTS, PROGRAM

_ARITHMETIC = {ast.Add: ("add", "+"), ast.Sub: ("sub", "-"), ast.Mult: ("mul", "*"), ast.FloorDiv: ("sdiv", "/"),
               ast.BitAnd: ("and", "&"), ast.BitOr: ("or", "|"), ast.LShift: ("shl", "<<"), ast.RShift: ("ashr", ">>")}
_COMPARISONS = {ast.Eq: ("eq", "=="), ast.NotEq: ("ne", "!="), ast.Lt: ("slt", "<"), ast.LtE: ("sle", "<="),
                ast.Gt: ("sgt", ">"), ast.GtE: ("sge", ">=")}

# For each step, its lines in LLVM IR and its line in C: {0}, {1}, .. are the operands, @ the name of a new value, and
# {p} the value defined by the line before.
_STEPS: dict[object, tuple[list[str], str]] = {
    "function": (["define {0}i64 @{1}({2}) nounwind {{\n{3}\n}}\n"], "{0}i64 {1}({2}) {{\n{3}\n}}\n"),
    "own": (["internal "], "static "),
    "value": (["%{0}"], "{0}"),
    "argument": (["i64 {0}"], "{0}"),
    "variable": (["%{0}.at = alloca i64"], "i64 {0}_at;"),
    "assign": (["store i64 {1}, ptr %{0}.at"], "{0}_at = {1};"),
    "read": (["@ = load i64, ptr %{0}.at"], "i64 @ = {0}_at;"),
    "label": (["{0}:"], "{0}: ;"),
    "go": (["br label %{0}"], "goto {0};"),
    "go if": (["@ = icmp ne i64 {0}, 0", "br i1 {p}, label %{1}, label %{2}"], "if ({0}) goto {1}; else goto {2};"),
    "return": (["ret i64 {0}"], "return {0};"),
    "call": (["@ = call i64 @{0}({1})"], "i64 @ = {0}({1});"),
    **{op: ([f"@ = {name} i64 {{0}}, {{1}}"], f"i64 @ = {{0}} {sign} {{1}};")
       for op, (name, sign) in _ARITHMETIC.items()},
    **{op: ([f"@ = icmp {name} i64 {{0}}, {{1}}", "@ = zext i1 {p} to i64"], f"i64 @ = {{0}} {sign} {{1}};")
       for op, (name, sign) in _COMPARISONS.items()},
}
# External operations that the program calls: inline lines in IR, functions in C.
_IR_CALLS: dict[object, list[str]] = {
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
_C_CALLS = """#include <stdint.h>
typedef int64_t i64;
static i64 load(i64 at) { return __atomic_load_n((i64 *)at, __ATOMIC_SEQ_CST); }
static i64 load32(i64 at) { return *(int32_t *)at; }
static i64 store(i64 at, i64 x) { __atomic_store_n((i64 *)at, x, __ATOMIC_SEQ_CST); return 0; }
static i64 set(i64 at, i64 x) { __atomic_store_n((i64 *)at, x, __ATOMIC_RELAXED); return 0; }
static i64 add(i64 at, i64 x) { return __atomic_add_fetch((i64 *)at, x, __ATOMIC_SEQ_CST); }
static i64 exchange(i64 at, i64 x) { return __atomic_exchange_n((i64 *)at, x, __ATOMIC_SEQ_CST); }
static i64 exchange_if(i64 at, i64 old, i64 new) {
  __atomic_compare_exchange_n((i64 *)at, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return old;
}
static i64 launch(i64 f, i64 a, i64 b, i64 c) { ((void (*)(i64, i64, i64))f)(a, b, c); return 0; }
static i64 system(i64 f, i64 a, i64 b, i64 c) { return ((int (*)(i64, i64, i64))f)(a, b, c); }
#if defined(__x86_64__)
static i64 pause(void) { __builtin_ia32_pause(); return 0; }
#else
static i64 pause(void) { __asm__ volatile("isb" ::: "memory"); return 0; }
#endif
"""


def c_text() -> str:
    """Return the pool as C, for machines with a C compiler and no llvmlite."""
    return "\n".join([_C_CALLS, *_functions({step: [line] for step, (_, line) in _STEPS.items()})])


def ir_text(arch: str) -> str:
    """Return the pool as LLVM IR for "x86_64" or "aarch64"."""
    declared, pause = _PAUSES[arch]
    steps = {**{step: lines for step, (lines, _) in _STEPS.items()}, **_IR_CALLS, "pause": [f"call void {pause}"]}
    return "\n".join([f"declare void {declared}\n", *_functions(steps)])


def _functions(steps: dict[object, list[str]]) -> list[str]:
    return [_FunctionWriter(node, steps).text for node in ast.parse(PROGRAM).body if isinstance(node, ast.FunctionDef)]


class _FunctionWriter:
    """Write one function in one language."""

    def __init__(self, function: ast.FunctionDef, steps: dict[object, list[str]]):
        self.steps, self.count = steps, 0
        self.lines: list[str] = []
        parameters = [argument.arg for argument in function.args.args]
        assigned = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self.put("label", "entry")
        for name in dict.fromkeys((*parameters, *assigned)):
            self.put("variable", name)
        for name in parameters:
            self.put("assign", name, self.spelled("value", name))
        self.block(function.body)
        self.put("return", "0")                  # unreachable: every function returns before, or loops for ever
        own = "" if function.name.startswith("glassgrad_") else self.spelled("own")
        given = ", ".join(f"i64 {self.spelled('value', name)}" for name in parameters)
        self.text = self.spelled("function", own, function.name, given, "\n".join(self.lines))

    def spelled(self, step: str, *operands: str) -> str:
        return self.steps[step][0].format(*operands)

    def put(self, step: object, *operands: str) -> str:
        """Emit the lines of a step; return the name of the value that the last line defines."""
        made = ""
        for line in self.steps[step]:
            self.count += 1
            name = self.spelled("value", f"v{self.count}")
            self.lines.append(line.format(*operands, p=made).replace("@ =", f"{name} ="))
            made = name
        return made

    def block(self, statements: list[ast.stmt], label: str = "", then: str = "") -> None:
        """Emit statements as a basic block of this name that ends with a jump to `then`."""
        if label:
            self.put("label", label)
        for statement in statements:
            self.statement(statement)
        if then:
            self.put("go", then)

    def statement(self, s: ast.stmt) -> None:
        self.count += 1
        test, body, other, out = (f"{name}{self.count}" for name in ("test", "body", "else", "out"))
        if isinstance(s, ast.Assign):
            self.put("assign", ast.unparse(s.targets[0]), self.value(s.value))
        elif isinstance(s, ast.Expr):
            self.value(s.value)
        elif isinstance(s, ast.Return) and s.value is not None:
            self.put("return", self.value(s.value))
            self.put("label", out)               # code after a return is unreachable, but needs a label
        elif isinstance(s, (ast.While, ast.If)):
            self.block([], "", test)
            self.put("label", test)
            self.put("go if", self.value(s.test), body, other)
            self.block(s.body, body, test if isinstance(s, ast.While) else out)
            self.block(s.orelse, other, out)
            self.put("label", out)
        else:
            raise Bug(f"the worker pool's program has a statement that cannot be written: {ast.unparse(s)}")

    def value(self, node: ast.expr) -> str:
        if isinstance(node, ast.BinOp):
            return self.put(type(node.op), self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Compare):
            return self.put(type(node.ops[0]), self.value(node.left), self.value(node.comparators[0]))
        if isinstance(node, ast.UnaryOp):
            return self.put(ast.Sub, "0", self.value(node.operand))
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.Name):
            return str(CONSTANTS[node.id]) if node.id in CONSTANTS else self.put("read", node.id)
        assert isinstance(node, ast.Call)
        name, operands = ast.unparse(node.func), [self.value(argument) for argument in node.args]
        if name in self.steps:
            return self.put(name, *operands)
        return self.put("call", name, ", ".join(self.spelled("argument", operand) for operand in operands))
