"""Count how often the rules of algebra are used: `python -m benchmarks.rules`. In: nothing. Out: a table, which is in
docs/stages/graph.md.

The graphs are those of benchmarks/loop_trees.py (products, convolutions, attention, their gradients), those of
benchmarks/op_cases.py (in PyTorch's words, which glassgrad understands), and some lines as users write them. They are
scheduled, and nothing is compiled.

    python -m benchmarks.rules --each       a line for each rule, also for those that no graph uses
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np

import glassgrad.torch as ours
from benchmarks.loop_trees import cases, leaf
from benchmarks.op_cases import CASES
from glassgrad import Tensor
from glassgrad.compiler.graph.rules import algebra
from glassgrad.compiler.graph.rules.rewrite import Rule, note_rules

FAMILIES = {"constants": algebra.CONSTANTS, "arithmetic": algebra.ARITHMETIC, "integer division": algebra.DIVISION,
            "bits and truth": algebra.LOGIC, "choosing": algebra.CHOICE, "conversion": algebra.CONVERSION,
            "inverse functions": algebra.INVERSES, "views": algebra.MOVES, "reductions": algebra.REDUCTIONS}


def as_users_write() -> Iterator[Tensor]:
    """Expressions with more operations than they need."""
    x, row, image = leaf(40, 50), leaf(1, 50), leaf(2, 3, 20, 20)
    yield from (x * 1 + 0, x / 1 - 0, (-x).neg() + x * -1, (x * 2 * 3 / 4).abs().abs())
    yield from (x.exp().log(), x.softmax(1).log())
    yield from (x.double().float(), x.half().float(), (x.int() // 8) % 16, ~(x == 1))
    yield from ((x > 0).where((x > 0).where(x, 1), 0), row.expand(40, 50).flip(1) + 1, row.repeat(3, 2).sum(1))
    yield from (x.pad(((1, 1), (0, 0))).pad(((0, 2), (1, 1))), x.pad(((2, 2), (0, 0)))[1:5] * 2)
    yield from (x.pad(((3, 3), (5, 5))).sum(1), leaf(0, 4).sum(0) + 1)
    yield from (image.avg_pool2d(2).square().sum().gradient(image)[0], image.max_pool2d(2).sum().gradient(image)[0])


def graphs() -> Iterator[Tensor]:
    """The tensors of all cases, and gradients of those that are trained."""
    yield from as_users_write()
    for _, make in cases():
        yield from make()
    rng = np.random.default_rng(0)
    for case in CASES:
        inputs = [ours.tensor(each.array(rng, 1)) for each in case.inputs]
        if not case.trained:
            yield case.compute(ours, *inputs)
            continue
        leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        case.compute(ours, *inputs).sum().backward()
        yield from [leaf.grad for leaf in leaves]


def count_uses() -> tuple[int, Counter[str], Counter[str]]:
    """How many graphs there are; by rule, how many of them use it, and how often it is used."""
    number, using, uses = 0, Counter[str](), Counter[str]()
    here: Counter[str] = Counter()

    def note(rule: Rule, node: object, replacement: object) -> None:
        here[rule.name] += 1

    for tensor in graphs():
        here.clear()
        before = note_rules(note)
        try:
            tensor.schedule()
        finally:
            note_rules(before)
        number += 1
        using.update(here.keys())
        uses.update(here)
    return number, using, uses


def main() -> None:
    number, using, uses = count_uses()
    if "--each" in sys.argv:
        for rules in FAMILIES.values():
            for rule in rules:
                print(f"{rule.name:<28} {using[rule.name]:>5} graphs {uses[rule.name]:>6} uses   {rule.why}")
        return
    print(f"| family | rules | graphs of {number}: the rules that most of them use | uses |\n|---|---|---|---|")
    for family, rules in FAMILIES.items():
        names = sorted([rule.name for rule in rules if using[rule.name]], key=lambda name: -using[name])
        most = ", ".join(f"{name} {using[name]}" for name in names[:4])
        print(f"| {family} | {len(rules)} | {most or 'none'} | {sum(uses[rule.name] for rule in rules)} |")


if __name__ == "__main__":
    main()
