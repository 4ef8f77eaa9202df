"""Project 3: gradients, by hand, by rule and by nudging. Run it: python projects/03_autograd.py

Its page is docs/guide/03_autograd.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
from telling import SHORT, chapter, tell, tree

from glassgrad import Tensor, dtypes, nn
from glassgrad.compiler.graph import ops
from glassgrad.compiler.graph.gradient import GRADIENTS
from glassgrad.nn.optim import SGD


def by_hand() -> None:
    chapter("By hand against .grad")
    x, y = Tensor([2.0]), Tensor([3.0])
    z = x * y + x ** 2
    z.backward()
    tell("z = x y + x^2 at x = 2, y = 3. By hand: dz/dx = y + 2x = 7 and dz/dy = x = 2.")
    print(f"  x.grad = {x.grad.item()}   y.grad = {y.grad.item()}")
    assert x.grad.item() == 7.0 and y.grad.item() == 2.0

    tell("Several ways lead from x to z; their gradients are added. Calling backward() twice adds as well:")
    z.backward()
    print(f"  after a second backward(): x.grad = {x.grad.item()}")
    x.grad = None
    z.backward()
    print(f"  after x.grad = None and another: x.grad = {x.grad.item()}")
    assert x.grad.item() == 7.0

    tell("A layer and a loss: y = W x, L = sum((y - t)^2). By hand dL/dy = 2 (y - t), so dL/dW = dL/dy x^T (an "
         "outer "
         "product) and dL/dx = W^T dL/dy.")
    W, v, t = Tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), Tensor([[1.0], [-1.0]]), Tensor([[0.0], [1.0], [2.0]])
    ((W @ v - t) ** 2).sum().backward()
    dy = 2 * (W.numpy() @ v.numpy() - t.numpy())
    print(f"  dL/dW by rule {W.grad.tolist()}\n        by hand {(dy @ v.numpy().T).tolist()}")
    assert np.array_equal(W.grad.numpy(), dy @ v.numpy().T) and np.array_equal(v.grad.numpy(), W.numpy().T @ dy)


def rules() -> None:
    chapter("Three backward rules, from the source")
    tell("Every op has one entry in glassgrad/compiler/graph/gradient.py: a function of g (the gradient of its "
         "result), the result, and its sources. It gives one gradient per source, as ordinary graph nodes.")
    for op, why in (
            (ops.MUL, "d(x y) = y dx + x dy: what each factor receives is scaled by the other one."),
            (ops.SUM, "every term counts once in a sum, so every term receives all of g: expand reverses sum."),
            (ops.EXPAND, "one element was read many times, so it receives the sum of what its copies receive: sum "
                         "reverses expand. In a matrix product, which is expand * multiply * sum, these three "
                         "rules meet.")):
        print("\n" + inspect.getsource(GRADIENTS[op]).rstrip())
        tell(f"-> {why}")
    x = Tensor([1.0, 2.0])
    g = (x * x).sum().gradient(x)[0]
    print()
    tell("A gradient is a graph like any other. That of sum(x * x), before anything is computed:")
    print(tree(g.uop))
    kernel = g.schedule()[0].ast
    print("After the algebra pass, as the one kernel that it becomes:")
    print(tree(kernel.src[0].src[1]))
    assert len(g.schedule()) == 1 and len(kernel.toposort()) < len(g.uop.toposort()) + 3
    print(f"value {g.tolist()}")
    assert g.tolist() == [2.0, 4.0]
    second = ((x ** 3).sum().gradient(x)[0]).sum().gradient(x)[0]
    print(f"so a gradient has a gradient: the second derivative of x^3 at {x.tolist()} is {second.tolist()}")
    assert second.tolist() == [6.0, 12.0]


def check_gradient(function: Callable[[Tensor], Tensor], x: np.ndarray, step: float = 1e-5) -> float:
    """The largest difference between backward() and nudging each element up and down, relative to the gradient."""
    tensor = Tensor(x, dtype=dtypes.float64)
    function(tensor).backward()
    by_rule = tensor.grad.numpy()
    nudged = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        nudged[place] = (function(Tensor(up)).item() - function(Tensor(down)).item()) / (2 * step)
    return float(np.abs(by_rule - nudged).max() / max(1.0, np.abs(nudged).max()))


def huber(prediction: Tensor, target: Tensor, delta: float = 1.0) -> Tensor:
    """Quadratic near 0, linear beyond delta: r^2 / 2 where |r| <= delta, else delta (|r| - delta / 2); averaged."""
    size = (prediction - target).abs()
    return (size <= delta).where(size.square() / 2, delta * (size - delta / 2)).mean()


def numerically() -> None:
    chapter("A checker that knows no rules: nudge and look")
    tell("(f(x + h) - f(x - h)) / 2h, in float64 with h = 1e-5. Its error is about h^2 + 1e-16/h, so agreement "
         "to eight "
         "digits is as good as it gets.")
    rng = np.random.default_rng(3)
    x, t = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    target, filters = Tensor(t), Tensor(t[:2, :2].reshape(1, 1, 2, 2))
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "sum(x^3)": lambda x: (x ** 3).sum(),
        "softmax(x)[:, 0]": lambda x: x.softmax(1)[:, 0].sum(),
        "logsumexp(x)": lambda x: x.logsumexp(),
        "max(x @ x^T)": lambda x: (x @ x.T).max(),
        "windows: conv2d": lambda x: x.reshape(1, 1, 3, 4).conv2d(filters).square().sum(),
        "huber(3x, t)": lambda x: huber(x * 3, target),
    }
    for name, function in functions.items():
        error = check_gradient(function, x)
        print(f"  {name:<18} differs by {'less than 1e-8' if error < 1e-8 else f'{error:.1e}'}")
        assert error < 1e-8, f"{name}: {error}"
    tell("Huber's loss is made of where, abs and square; no gradient was written for it. Its rule is r inside "
         "and delta sign(r) "
         "outside, divided by the number of elements:")
    r = Tensor([-3.0, -0.5, 0.0, 0.5, 3.0])
    huber(r, r.zeros_like()).backward()
    print(f"  r          {r.tolist()}\n  5 x grad   {(r.grad * 5).tolist()}")
    assert np.allclose((r.grad * 5).numpy(), [-1.0, -0.5, 0.0, 0.5, 1.0])
    tell("A checker must be able to fail. With one branch hidden from backward(), it does:")

    def wrong(x: Tensor) -> Tensor:      # detach() hides the linear branch from backward()
        size = (x * 3 - target).abs()
        return (size <= 1.0).where(size.square() / 2, (size - 0.5).detach()).mean()

    error = check_gradient(wrong, x)
    print(f"  {'a hidden branch':<18} differs by {error:.2f}")
    assert error > 0.1


class XOR:
    """Two inputs, eight hidden units, one output."""

    def __init__(self) -> None:
        self.hidden, self.out = nn.Linear(2, 8), nn.Linear(8, 1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.out(self.hidden(x).tanh()).sigmoid()


def xor() -> None:
    chapter("A network that overfits XOR")
    Tensor.manual_seed(1)
    x, t = Tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), Tensor([[0.0], [1.0], [1.0], [0.0]])
    model = XOR()
    optimizer = SGD(nn.state.get_parameters(model), lr=2.0)
    steps, losses = (300 if SHORT else 1000), []
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(x).binary_crossentropy(t)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step in (0, 9, 99, steps - 1):
            print(f"  step {step + 1:4d}   loss {losses[-1]:.4f}")
    answers = model(x)
    for row, answer in zip(x.tolist(), answers.tolist()):
        print(f"  {row[0]:.0f} xor {row[1]:.0f}  ->  {answer[0]:.3f}")
    assert losses[-1] < 0.05 < losses[0] and ((answers > 0.5).float() == t).all().item()
    tell("No straight line separates the ones from the zeros, so one layer cannot do it; eight bent lines can. "
         "Four examples "
         "and 33 parameters: this is learning by heart, and that is the test. A network that cannot overfit "
         "four examples has "
         "a bug in its gradients.")


if __name__ == "__main__":
    by_hand()
    rules()
    numerically()
    xor()
