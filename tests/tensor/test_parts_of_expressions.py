"""Parts of expressions: what they are computed from, and that they have the values of the whole expression's parts."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from glassgrad import Tensor
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.gradient import written_out
from glassgrad.tensor import parts_of_expressions
from glassgrad.tensor.parts_of_expressions import parts_of

EXPRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elements": lambda x: (x * 2 + 1).exp(), "a number": lambda x: x * x.sum(), "columns": lambda x: x / x.sum(0),
    "rows": lambda x: x.softmax(1), "expanded": lambda x: x[:, 1].exp().reshape(7, 1, 1).expand(7, 5, 4) + x[0, :4],
    "permuted": lambda x: x.reshape(7, 3, 2).permute(2, 0, 1).cos(), "merged": lambda x: x.exp().reshape(21, 2),
    "with axes of one": lambda x: x.exp().reshape(1, 7, 1, 6), "flipped": lambda x: x.exp().flip((0, 1)),
    "shrunk": lambda x: x.exp()[2:, 1:5], "strided": lambda x: x.exp()[::2, 1::3],
    "joined": lambda x: x.cat(x.exp(), dim=1),
    "padded": lambda x: x.exp().pad(((2, 3), (1, 0))), "product": lambda x: (x @ x.T).relu() @ x,
    "running": lambda x: x.exp().cumsum(0), "sorted": lambda x: x.sin().sort(1)[0], "cast": lambda x: x.int() + 1,
    "detached": lambda x: x.exp().detach() + 1, "stored": lambda x: x.exp().contiguous().T,
    "looked up": lambda x: x.exp()[[3, 1]],
    "gradient": lambda x: (x.exp() * x).sum().gradient(x)[0], "random": lambda x: Tensor.rand(7, 6) + x,
    "bits": lambda x: x.bitcast("int32") >> 3, "of windows": lambda x: x.exp().unfold(1, 2, 2).sum(2),
    "chosen": lambda x: (x > 0).where(x.exp(), x.sum(1, keepdim=True)), "one number": lambda x: x.exp().sum(),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_part_has_the_values_of_the_whole(name: str, rng: np.random.Generator, seed: int) -> None:
    x = Tensor(rng.standard_normal((7, 6)).astype("float32")).realize()
    made = EXPRESSIONS[name](x)
    [node] = written_out([made.uop])
    values, choice = made.numpy(), random.Random(seed)
    for _ in range(4):
        starts = [choice.randrange(n) for n in made.shape]
        bounds = tuple((start, choice.randint(start + 1, n)) for start, n in zip(starts, made.shape))
        [part] = parts_of(node, [bounds])
        expected = values[tuple(slice(start, stop) for start, stop in bounds)]
        assert part.shape == expected.shape and part.dtype is made.dtype
        np.testing.assert_allclose(made._with(part).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_part_of_everything_is_the_node_itself() -> None:
    node = (Tensor.ones(3, 4).contiguous() + 1).uop
    assert parts_of(node, [((0, 3), (0, 4))]) == [node]


def test_parts_share_what_both_need() -> None:
    x = Tensor.rand(50, 40).realize()
    [node] = written_out([x.softmax(0).uop])
    parts = parts_of(node, [((0, 3), (0, 3)), ((47, 50), (0, 3)), ((0, 3), (37, 40))])
    first, below, beside = ({n for n in part.toposort() if n.op in o.REDUCE} for part in parts)
    assert first == below and first.isdisjoint(beside) and all(n.shape == (1, 3) for n in first)


def test_an_expression_of_very_many_parts_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_of_expressions, "MOST_PARTS", 20)
    x = Tensor.rand(40).realize().uop
    for _ in range(10):
        x = x.shrink(((1, 40),)).pad(((0, 1),)) + x
    bounds = ((0, 3),)
    assert parts_of(x, [bounds]) == [x.shrink(bounds)]


def test_a_long_chain_has_parts() -> None:
    x = Tensor.rand(40).realize()
    node = x.uop
    for _ in range(1500):
        node = node + 1.0
    assert parts_of(node, [((0, 3),)])[0].shape == (3,)
