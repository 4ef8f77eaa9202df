"""Which values get memory: how many kernels a graph becomes, and the reason of each decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassgrad import Context, Device, GlobalCounters, Tensor, nn
from glassgrad.compiler.schedule.fusion import DEEP_ENOUGH, DEEPEST, LARGEST

ANOTHER = "CPU" if Device.DEFAULT == "PYTHON" else "PYTHON"       # than the one that everything else here runs on


def ready(*shape: int) -> Tensor:
    """A tensor whose values are in memory."""
    return Tensor.rand(*shape).realize()


def kernels(*tensors: Tensor) -> int:
    return len(tensors[0].schedule(*tensors[1:]))


# -- how many kernels ----------------------------------------------------------------------------------------
def diamond(x: Tensor) -> Tensor:
    shared = x * 2
    return (shared + 1) * (shared - 1)


ONE_KERNEL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise into a sum": lambda x, y: (x + y).relu().sum(),
    "softmax": lambda x, y: x.softmax(),
    "softmax along the first axis": lambda x, y: x.softmax(0),
    "log_softmax": lambda x, y: x.log_softmax(),
    "layernorm": lambda x, y: x.layernorm(),
    "matmul": lambda x, y: x @ y,
    "matmul of views": lambda x, y: x.T @ y.flip(0).T,
    "matmul, bias, relu": lambda x, y: (x @ y + y[0]).relu(),
    "prologue into a matmul": lambda x, y: (x * 2 + 1) @ y.relu(),
    "a diamond of cheap ops": lambda x, y: diamond(x),
    "a diamond into a sum": lambda x, y: diamond(x).sum(1),
    "gelu": lambda x, y: x.gelu(),
    "standard deviation": lambda x, y: x.std(),
    "a chain of views inside": lambda x, y: (x.T.reshape(32, 128).flip(1)[::2] + 1).permute(1, 0) * 3,
    "each second row of what is costly": lambda x, y: x.exp()[::2] + y.log()[1::2],
    "each third element of a softmax": lambda x, y: x.softmax(1)[:, ::3] * 2,
    "each second column of a product, backwards": lambda x, y: (x @ y)[:, ::-2],
    "windows side by side": lambda x, y: x.exp().reshape(1, 1, 64, 64).max_pool2d(2),
    "random numbers": lambda x, y: ((Tensor.randn(4, 4) + 1) * 2).relu(),
    "random numbers into a sum": lambda x, y: Tensor.rand(100, 100).sum(),
    "constants alone": lambda x, y: Tensor.full((3, 4), 2.0) + 1,
    "the mean of a product": lambda x, y: (x * y).mean(),
    "counting": lambda x, y: Tensor.arange(10) * 2,
    "the place of the maximum": lambda x, y: x.argmax(1),
    "a triangle": lambda x, y: x.tril() + Tensor.eye(64),
    "one hot": lambda x, y: Tensor([1, 2]).realize().one_hot(4),
    "contiguous after a reduction": lambda x, y: x.softmax().contiguous(),
    "a convolution": lambda x, y: x.reshape(1, 1, 64, 64).conv2d(y[:3, :3].reshape(1, 1, 3, 3)),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
@pytest.mark.parametrize("noopt", [0, 1])
def test_one_kernel(name: str, noopt: int) -> None:
    x, y = ready(64, 64), ready(64, 64)
    with Context(NOOPT=noopt):
        result = ONE_KERNEL[name](x, y)
        assert kernels(result) == 1
        GlobalCounters.reset()
        result.realize()
        assert GlobalCounters.kernel_count == 1


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slices": lambda x: x[1:3, :, ::2], "permute": lambda x: x.permute(2, 0, 1), "reshape": lambda x: x.reshape(6, -1),
    "expand": lambda x: x.reshape(1, 4, 3, 6).expand(5, 4, 3, 6), "flip": lambda x: x.flip((0, 2)),
    "pad": lambda x: x.pad(((1, 1), (0, 0), (2, 0))), "squeeze": lambda x: x[:1].squeeze(0), "T": lambda x: x[0].T,
    "one element": lambda x: x[1, 2, 3], "steps backwards": lambda x: x[::-1, :, 4:1:-2],
    "windows": lambda x: x.unfold(2, 3, 1) if hasattr(x, "unfold") else x[:, :, :3],
}


@pytest.mark.parametrize("name", VIEWS)
def test_movement_alone_runs_nothing(name: str) -> None:
    x = ready(4, 3, 6)
    assert kernels(VIEWS[name](x)) == 0
    GlobalCounters.reset()
    VIEWS[name](x).realize()
    assert GlobalCounters.kernel_count == 0


def test_realize_after_each_op_is_a_kernel_each() -> None:
    x = ready(8, 8)
    GlobalCounters.reset()
    x = (x + 1).realize()
    x = (x * 2).realize()
    x = x.relu().realize()
    assert GlobalCounters.kernel_count == 3


@pytest.mark.parametrize("shape", [(1, 1), (3, 0), (4, 4096), (4096, 4), (256, 257)])
def test_row_fusion_holds_at_every_size(shape: tuple[int, int]) -> None:
    x = ready(*shape)
    expected = 1 if math.prod(shape) else 0
    for made in (x.softmax(), x.log_softmax(), x.layernorm()):
        assert kernels(made) == expected


def test_what_belongs_together_shares_a_kernel() -> None:
    """Adam: both moments and the weight are one walk over memory."""
    weight, gradient, first, second = (ready(64, 32) for _ in range(4))
    m = first * 0.9 + gradient * 0.1
    v = second * 0.99 + gradient * gradient * 0.01
    w = weight - m / (v.sqrt() + 1e-8) * 0.001
    assert kernels(m, v, w) == 1


@pytest.mark.parametrize("shapes", [((5, 7), (11, 7)), ((1, 7), (11, 7)), ((5, 7), (1, 7)), ((5, 1), (11, 1))])
def test_a_gradient_and_the_weight_it_updates_share_a_kernel(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Sums keep their axis at length 1; that does not part a result from what is computed of it."""
    numbers = np.random.default_rng(0)
    x, w = (numbers.standard_normal(shape).astype(np.float32) for shape in shapes)
    input, weight, rate = Tensor(x), Tensor(w), Tensor([0.1]).realize()
    gradient = (input @ weight.T).square().sum().gradient(weight)[0]
    new = weight - rate * gradient
    assert [item.results for item in gradient.schedule(new)][-1] == 2
    Tensor.realize(gradient, new)
    expected = 2 * (x @ w.T).T @ x
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new.numpy(), w - 0.1 * expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("function", [lambda x: x.exp()[::2], lambda x: x[:, ::2] * x[:, 1::2],
                                      lambda x: x.reshape(1, 1, 64, 64).avg_pool2d(2) * 3])
def test_the_gradient_of_elements_apart_is_one_kernel(function: Callable[[Tensor], Tensor]) -> None:
    x = ready(64, 64)
    function(x).sum().backward()
    assert x.grad is not None and kernels(x.grad) == 1


def test_a_training_step_has_one_kernel_for_each_weight() -> None:
    layers = [nn.Linear(12, 9), nn.Linear(9, 4)]
    weights = [Tensor.rand(12, 9), Tensor.rand(9, 4)]       # the other way round: x @ w
    x, y = Tensor.rand(8, 12).realize(), Tensor.rand(8, 4).realize()
    for model, params in ((lambda x: layers[1](layers[0](x).relu()), nn.state.get_parameters(layers)),
                          (lambda x: (x @ weights[0]).relu() @ weights[1], weights)):
        optimizer = nn.optim.SGD(params, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            GlobalCounters.reset()
            loss = (model(x) - y).square().mean().backward()
            optimizer.step()
            assert GlobalCounters.kernel_count == 2 + 1 + 1 + len(params)      # forward, the loss, a gradient between
        assert loss.item() > 0


def test_equal_layers_have_equal_kernels() -> None:
    x = ready(8, 16)
    weights = [ready(16, 16) for _ in range(4)]
    for w in weights:
        x = (x @ w).relu()
    assert len({item.ast for item in x.schedule()}) == 1, "interned: compared by identity"
    assert kernels(x) == 4


# -- why: every reason of fuse.py, by a graph that meets it --------------------------------------------------
def _shared(x: Tensor) -> tuple[Tensor, Tensor]:
    costly = x.sin().exp().sin()
    return costly.sum(0), costly.sum(1)


def _long(x: Tensor) -> Tensor:
    for _ in range(LARGEST // 10):
        x = x.exp() * 0.01
    return x


def _deep(x: Tensor) -> Tensor:
    for _ in range(DEEPEST + 1):
        x = x - x.mean(1, keepdim=True) + 1
    return x


REASONS: dict[str, Callable[[Tensor], Any]] = {
    "an output": lambda x: x + 1,
    "contiguous() asks for memory": lambda x: (x + 1).T.contiguous().sum(1),
    "copied to another device": lambda x: (x + 1).to(ANOTHER),
    "read by copy": lambda x: (x + 1).to(ANOTHER),
    "scan writes memory": lambda x: x.cumsum(0) + 1,
    "read by scan": lambda x: x.sum(0).cumsum(0),
    "read by index: any row, any number of times": lambda x: (x * 2)[Tensor([1, 2, 3]).realize()],
    "an index with a reduction inside": lambda x: x[x.argmax(1)],
    "its rows differ from those it is combined with": lambda x: x.sum(0, keepdim=True) + x.sum(1, keepdim=True),
    "a sum of products shares its kernel with no other reduction": lambda x: x @ x.T + x @ (x + 1),
    "a reduction under pad would be computed again": lambda x: x.sum(1).pad(((1, 1),)) + 1,
    "a reshape mixes the rows of its reduction with the rest": lambda x: x.softmax().reshape(256, 16) + 1,
    "each element is read 3 times and costs 17": lambda x: x.exp().reshape(1, 1, 64, 64).max_pool2d(3, 1),
    "costly, and repeated many times": lambda x: x[0].exp().reshape(1, 64).expand(64, 64) + x,
    "a factor of a sum of products, with a reduction inside": lambda x: x.softmax() @ x,
    "a sum of products under another reduction": lambda x: (x @ x).sum(),
    "its rows are reduced in turn": lambda x: (ready(64, 512).sum(1) ** 2).sum(),
    "computed for fewer axes than its reader has":
        lambda x: (x.sum(1).reshape(64, 1, 1).expand(64, 64, 3) * ready(64, 64, 3)).sum(1),
    "used by several kernels, and costly to compute again": _shared,
    f"a kernel of {LARGEST} operations is long enough": _long,
    DEEP_ENOUGH: _deep,
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_decision_has_its_reason(reason: str) -> None:
    made = REASONS[reason](ready(64, 64))
    made = made if isinstance(made, tuple) else (made,)
    found = [r for item in made[0].schedule(*made[1:]) for r in item.reasons]
    assert reason in found


def test_a_kernel_names_the_users_line() -> None:
    x = ready(4, 4)
    y = x * 2 + 1                                    # this line
    assert y.schedule()[0].lines[0].file == __file__
    assert "# this line" in open(__file__).read().splitlines()[y.schedule()[0].lines[0].number - 1]


# -- what would be computed too often is stored --------------------------------------------------------------
def test_a_value_added_to_itself_shifted_again_and_again_is_stored_in_time() -> None:
    """Each step doubles the elements that the next one computes: the twelfth would compute 4096 for one result."""
    x = y = ready(5000)
    for step in range(12):
        y = y + y[:-(1 << step)].pad(((1 << step, 0),))
    assert kernels(y) > 1
    expected = np.cumsum(x.numpy().astype(np.float64))
    expected[4096:] -= expected[:-4096].copy()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)


def test_a_chain_of_products_with_a_vector_is_stored_in_time() -> None:
    """Inlined, each product would compute the one before it for every row: 640 times as much work with each step."""
    x, w = ready(64, 10), ready(10, 1)
    y = w
    for _ in range(3):
        y = y - 0.01 * (x.T @ (x @ y))
    assert kernels(y) in (3, 6), "one for each step, or on a GPU one for each product"
    matrix = x.numpy().astype(np.float64)
    expected = np.linalg.matrix_power(np.eye(10) - 0.01 * matrix.T @ matrix, 3) @ w.numpy()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)
