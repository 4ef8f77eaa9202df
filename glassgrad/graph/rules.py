"""The algebra: what may be written shorter. In: nothing. Out: `ALGEBRA` and `STRIP`, rules as data for `rewrite`.

A rule keeps every bit of the result, NaN, infinities and -0.0 included, or is tagged `Inexact` with the domain inside
which it changes only the last places. One property test fills every rule's holes at random and compares both sides by
the interpreter. Each rule has a name, by which DISABLE_RULES leaves it out, and a reason. They stand in number_rules.py
and shape_rules.py.
"""

from __future__ import annotations

from glassgrad.graph import ops as o
from glassgrad.graph.number_rules import NUMBER_RULES
from glassgrad.graph.rewrite import Rule, RuleSet, holes, some
from glassgrad.graph.shape_rules import SHAPE_RULES

ALGEBRA = RuleSet([*NUMBER_RULES, *SHAPE_RULES])

# What the compiler does not need to see: gradients are taken before.
x, = holes("x")
STRIP = RuleSet([Rule("strip-detach", some(o.DETACH, x), lambda root: root.src[0], why="it matters to gradients only")])
