"""The rewrite engine, for rules given as data. In: UOps and rules. Out: UOps of equal value. Does not know any rule.

A rule's left side is written with holes and operators, `(x // c) // d`, and matches nodes of that form with the
operands of commutative ops in either order. Its right side is written the same way, or is a function of the nodes that
the holes matched. Rules are looked up by a node's op and tried in order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from glassgrad.base.errors import Bug, InputError
from glassgrad.base.settings import settings
from glassgrad.base.source_lines import one_place
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtypes
from glassgrad.compiler.graph.ops import Op
from glassgrad.compiler.graph.uop import Operators, UOp, const

MOST_REPLACEMENTS = 200    # pending at once: more means that rules undo each other


# -- patterns: expressions with holes ------------------------------------------------------------------------
class Pattern(Operators["NodePattern"]):
    """Base of everything that may stand in a pattern; operators on patterns build larger patterns."""
    __slots__ = ()

    def _wrap(self, value: Any) -> Pattern: return _pattern(value)
    def alu(self, op: Op, *others: Any) -> NodePattern: return node(op, self, *others)
    def where(self, x: Any, y: Any) -> NodePattern: return node(o.WHERE, self, x, y)


@dataclass(eq=False, repr=False)
class Hole(Pattern):
    """Matches one node: any node, or only some kinds of element type (b, i, u, f), or only constants. A hole that
    occurs twice must match the same node."""
    name: str
    kinds: str = "biuf"
    constant: bool = False

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, repr=False)
class Literal(Pattern):
    """A number: matches a CONST equal to it, whatever its type (0 matches 0, 0.0, -0.0 and False)."""
    value: bool | int | float

    def __repr__(self) -> str:
        return repr(self.value)


@dataclass(eq=False, repr=False)
class NodePattern(Pattern):
    """Matches a node with one of `ops`. `quantity` says how its sources must match: "list" (one pattern each), "each"
    (all match the one pattern) or "some" (at least one does)."""
    ops: tuple[Op, ...]
    sources: tuple[Pattern, ...] = ()
    quantity: str = "list"
    name: str | None = None

    def __repr__(self) -> str:
        ops = self.ops[0].name if len(self.ops) == 1 else f"{self.ops[0].name}|.."
        inner = ", ".join(map(repr, self.sources))
        return f"{ops}({inner if self.quantity == 'list' else f'{self.quantity} {inner}'})"


Expression = Pattern | int | float


def holes(names: str, kinds: str = "biuf", constant: bool = False) -> list[Hole]:
    """Make holes from names: `x, y = holes("x y")`; `c, = holes("c", constant=True)`."""
    return [Hole(name, kinds, constant) for name in names.split()]


def _pattern(value: Any) -> Pattern:
    return value if isinstance(value, Pattern) else Literal(value)


def node(ops: Op | Iterable[Op], *sources: Any, name: str | None = None) -> NodePattern:
    """Pattern of a node with one op (or one of several) and these sources; `name` passes it to the rule's functions."""
    return NodePattern((ops,) if isinstance(ops, Op) else tuple(ops), tuple(map(_pattern, sources)), "list", name)


def each(ops: Op | Iterable[Op], source: Pattern) -> NodePattern:
    """Pattern of a node of which every source matches."""
    return NodePattern((ops,) if isinstance(ops, Op) else tuple(ops), (source,), "each")


def some(ops: Op | Iterable[Op], source: Pattern) -> NodePattern:
    """Pattern of a node of which at least one source matches."""
    return NodePattern((ops,) if isinstance(ops, Op) else tuple(ops), (source,), "some")


# -- rules ---------------------------------------------------------------------------------------------------
class Inexact(NamedTuple):
    """Marks a rule that is not bit-exact: its error bound in ulps, and the domain in which the bound holds."""
    domain: str
    inside: Callable[[Any], Any]     # (array for a float hole) -> mask of the elements in the domain
    ulps: float = 4
    floor: float = 0.0               # errors of results smaller than this are measured relative to it


class Rule:
    """Rewrite `pattern` to `replacement` where `when` holds, for the reason `why`. DISABLE_RULES turns it off by name.

    `when`, and `replacement` if it is a function, receive the holes that their parameters name: constants as Python
    numbers, others as nodes; and `root`, the whole node. A function may return None to decline.
    """
    known: dict[str, Rule] = {}

    def __init__(self, name: str, pattern: Pattern, replacement: Expression | Callable[..., UOp | None],
                 when: Callable[..., bool] | None = None, why: str = "", inexact: Inexact | None = None):
        if not isinstance(pattern, NodePattern) or name in Rule.known or not why:
            raise Bug(f"the rule {name!r} needs a pattern with an op, a name of its own, and a reason")
        self.name, self.pattern, self.when, self.why, self.inexact = name, pattern, when, why, inexact
        self.replacement = replacement if callable(replacement) else _pattern(replacement)
        self.variants = [variant for variant in _orders(pattern) if isinstance(variant, NodePattern)]
        self._constants = {h.name for h in holes_of(pattern) if h.constant}
        self._when_names = _names_of(when) if when else ()
        self._replacement_names = _names_of(replacement) if callable(replacement) else ()
        Rule.known[name] = self

    def __repr__(self) -> str:
        return f"Rule({self.name}: {self.pattern!r})"

    def apply(self, root: UOp, variant: NodePattern) -> UOp | None:
        """Return the replacement of the root by this rule, or None."""
        found: dict[str, UOp] = {}
        if not _match(variant, root, found):
            return None
        found["root"] = root
        if self.when is not None and not self.when(*self._given(found, self._when_names)):
            return None
        with one_place(root.place):            # nodes made from a node keep its user line
            if isinstance(self.replacement, Pattern):
                result: UOp | None = _build(self.replacement, found, root.dtype)
            else:
                result = self.replacement(*self._given(found, self._replacement_names))
            if result is None or result is root:
                return None
            if result.shape != root.shape and result.shape == ():
                result = result.broadcast(root.shape)
        if result.shape != root.shape or result.dtype is not root.dtype:
            raise Bug(f"the rule {self.name!r} made {result} of {root}")
        return result

    def _given(self, found: dict[str, UOp], names: tuple[str, ...]) -> list[Any]:
        return [found[n].arg if n in self._constants else found[n] for n in names]


def holes_of(pattern: Pattern) -> list[Hole]:
    """List every hole in a pattern."""
    if isinstance(pattern, NodePattern):
        return [h for source in pattern.sources for h in holes_of(source)]
    return [pattern] if isinstance(pattern, Hole) else []


def _names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[:code.co_argcount]


def _orders(pattern: Pattern) -> Iterator[Pattern]:
    """Yield the pattern with the operands of commutative ops in every order."""
    if not isinstance(pattern, NodePattern):
        yield pattern
        return
    commutative = pattern.quantity == "list" and all(x.commutative for x in pattern.ops)
    for sources in itertools.product(*map(_orders, pattern.sources)):
        yield NodePattern(pattern.ops, sources, pattern.quantity, pattern.name)
        if commutative and repr(sources) != repr(sources[::-1]):
            yield NodePattern(pattern.ops, sources[::-1], pattern.quantity, pattern.name)


def _match(pattern: Pattern, candidate: UOp, found: dict[str, UOp]) -> bool:
    if type(pattern) is Hole:
        before = found.get(pattern.name)
        if before is not None:
            return before is candidate
        if candidate.dtype.kind not in pattern.kinds or (pattern.constant and candidate.op is not o.CONST):
            return False
        found[pattern.name] = candidate
        return True
    if type(pattern) is Literal:
        return candidate.op is o.CONST and candidate.arg == pattern.value
    assert type(pattern) is NodePattern
    if candidate.op not in pattern.ops:
        return False
    if pattern.name is not None:
        found[pattern.name] = candidate
    if pattern.quantity == "list":
        for inner, source in zip(pattern.sources, candidate.src):
            if not _match(inner, source, found):
                return False
        return True
    tried = (_match(pattern.sources[0], source, {}) for source in candidate.src)
    return all(tried) if pattern.quantity == "each" else any(tried)


def _build(pattern: Pattern, found: dict[str, UOp], dtype: DType) -> UOp:
    """Build the node that an expression stands for; a literal takes the type of the operand beside it."""
    if isinstance(pattern, Hole):
        return found[pattern.name]
    if isinstance(pattern, Literal):
        return const(pattern.value, dtype)
    assert isinstance(pattern, NodePattern)
    op = pattern.ops[0]
    first = 1 if op is o.WHERE else 0
    beside = [_build(p, found, dtype) for p in pattern.sources[first:] if not isinstance(p, Literal)]
    inner = beside[0].dtype if beside else dtype
    sources = [_build(p, found, inner) for p in pattern.sources]
    return UOp(op, dtypes.bool if op.compares else sources[-1].dtype, tuple(sources))


# -- looking rules up and applying them ----------------------------------------------------------------------
Candidates = list[tuple[Rule, NodePattern]]


class RuleSet:
    """Rules in order of preference: the first that matches a node is applied."""

    def __init__(self, rules: Iterable[Rule]):
        self.rules = tuple(rules)
        self._tables: dict[str, dict[Op, Candidates]] = {}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def table(self) -> dict[Op, Candidates]:
        """The rules that may match each op, filled as ops appear, without the rules in DISABLE_RULES."""
        return self._tables.setdefault(settings.DISABLE_RULES, {})

    def candidates(self, op: Op) -> Candidates:
        disabled = {name.strip() for name in settings.DISABLE_RULES.split(",") if name.strip()}
        unknown = disabled - Rule.known.keys()
        if unknown:
            raise InputError("DISABLE_RULES names rules that do not exist", given=", ".join(sorted(unknown)),
                             expected=f"names of rules: {', '.join(Rule.known)}", fix="check the spelling")
        return [(rule, variant) for rule in self.rules if rule.name not in disabled and op in rule.pattern.ops
                for variant in rule.variants]


_noting: Callable[[Rule, UOp, UOp], None] | None = None


def note_rules(note: Callable[[Rule, UOp, UOp], None] | None) -> Callable[[Rule, UOp, UOp], None] | None:
    """Set the callback `note(rule, node, replacement)` that `rewrite` calls for each applied rule (used by the
    visualizer and CHECK); return the previous one."""
    global _noting
    before, _noting = _noting, note
    return before


def rewrite(roots: Sequence[UOp], rules: RuleSet) -> list[UOp]:
    """Rewrite every node under the roots until no rule applies, sources first, each node once.

    >>> from glassgrad.compiler.graph.rules.algebra import ALGEBRA
    >>> from glassgrad.compiler.graph.op_arguments import Param
    >>> x = UOp(o.PARAM, dtypes.float32, (), Param(0, (3,)))
    >>> rewrite([(x * 1.0 - 0.0) * (const(2.0) + 3.0)], ALGEBRA)[0] is x * 5.0
    True
    """
    table, noting = rules.table(), _noting
    final: dict[UOp, UOp] = {}       # node -> its final form, to which no rule applies
    becomes: dict[UOp, UOp] = {}       # node -> its replacement, which may still be rewritten
    trail: deque[str] = deque(maxlen=12)
    stack = list(roots)
    while stack:
        top = stack[-1]
        if top in final:
            stack.pop()
            continue
        if top in becomes:
            if becomes[top] not in final:
                raise Bug(f"rewrite rules go in a circle at {top}: {' -> '.join(trail)}")
            final[top] = final[becomes.pop(top)]
            stack.pop()
            continue
        waiting = [s for s in top.src if s not in final]
        if waiting:
            stack += waiting
            continue
        sources = tuple([final[s] for s in top.src])
        if sources != top.src:
            becomes[top] = top.over(sources)
            stack.append(becomes[top])
            continue
        candidates = table.get(top.op)
        if candidates is None:
            candidates = table[top.op] = rules.candidates(top.op)
        for rule, variant in candidates:
            result = rule.apply(top, variant)
            if result is not None:
                trail.append(rule.name)
                if noting is not None:
                    noting(rule, top, result)
                if len(becomes) > MOST_REPLACEMENTS:
                    raise Bug(f"rewrite rules do not come to an end at {top}: {' -> '.join(trail)}")
                becomes[top] = result
                stack.append(result)
                break
        else:
            final[top] = top
            stack.pop()
    return [final[r] for r in roots]
