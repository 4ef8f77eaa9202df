"""Branch around a cold path. In: statements with marked WHEREs. Out: the same with Ifs around the rarely needed work.

A lane cannot branch, but a vector can: where no lane needs the expensive side, it is skipped. The sine of large angles
is three quarters of a sine's work, and most vectors have none.
"""

from __future__ import annotations

from glassgrad.compiler.graph import UOp, const, ops as o, toposort
from glassgrad.compiler.graph.index_algebra import substitute_index
from glassgrad.compiler.lower.loops import (LANE, WIDE, Assign, For, If, Statement, expressions, fold, ranges_of,
                                            register, with_body)
from glassgrad.compiler.lower.transcendental import RARELY
from glassgrad.compiler.optimize.moves.loop_moves import rebuild
from glassgrad.compiler.optimize.moves.move_limit import move


@move(lambda body, *_: body)
def branch(body: list[Statement], wide: tuple[For, ...] = (), names: list[UOp] | None = None) -> list[Statement]:
    """S[v < limit ? usual : seldom]  ->  r = usual; if max over lanes of v >= limit: r = that WHERE; S[r]

    refuses: what is inside a FOLD, whose lanes are not in scope where it is computed
    """
    names = [] if names is None else names                       # registers made so far
    out: list[Statement] = []
    for s in body:
        if isinstance(s, (For, If)):
            inner = (*wide, s) if isinstance(s, For) and s.kind in WIDE else wide
            out.append(with_body(s, branch(s.body, inner, names)))
        else:
            nodes = toposort(expressions(s))
            marked = [] if any(n.op is o.FOLD for n in nodes) else [n for n in nodes if _is_rare(n)]
            replace: dict[UOp, UOp] = {}
            for node in marked:
                condition, usual, seldom = (substitute_index(source, replace, {}) for source in node.src)
                axes = [loop.range for loop in wide if loop.range in ranges_of(node)]
                lanes = [loop.range for loop in wide if loop.kind == LANE]
                value = register(f"rare{len(names)}", node.dtype, axes)
                names.append(value)
                measure, limit = condition.src
                needed = const(limit.arg - 1, limit.dtype) < fold(measure, o.MAX, lanes)
                out += [Assign(value, usual), If(needed, [Assign(value, condition.where(usual, seldom))])]
                replace[node] = value
            out += rebuild([s], replace) if replace else [s]
    return out


def usual_nodes(root: UOp) -> list[UOp]:
    """Every node under the root that is not on a cold path."""
    return toposort([root], lambda node: node.src[:2] if _is_rare(node) else node.src)


def _is_rare(node: UOp) -> bool:
    return node.op is o.WHERE and node.arg == RARELY
