"""The algebra: what may be written shorter. In: nothing. Out: `ALGEBRA`, rules as data for `rewrite`.

A rule keeps every bit of the result, NaN, infinities and -0.0 included, or is tagged `Inexact` with the domain inside
which it changes only the last places. One property test fills every rule's holes at random and compares both sides by
the interpreter. Each rule has a name, by which DISABLE_RULES leaves it out, and a reason: elementwise.py, views.py.
"""

from __future__ import annotations

from glassgrad.compiler.graph.rules.elementwise import NUMBER_RULES
from glassgrad.compiler.graph.rules.rewrite import RuleSet
from glassgrad.compiler.graph.rules.views import SHAPE_RULES

ALGEBRA = RuleSet([*NUMBER_RULES, *SHAPE_RULES])
