"""A function that is captured once and replayed."""
import numpy as np
from tinygrad import Tensor, TinyJit
from tinygrad.engine.jit import TinyJit as same

assert TinyJit is same


@TinyJit
def step(x):
    return (x * 2 + 1).gelu().sum().realize()


for i in range(5):
    x = Tensor([float(i), 1.0, -1.0]).realize()
    out = step(x)
    values = np.array([i, 1.0, -1.0]) * 2 + 1
    expected = (0.5 * values * (1 + np.tanh(np.sqrt(2 / np.pi) * (values + 0.044715 * values ** 3)))).sum()
    np.testing.assert_allclose(out.item(), expected, rtol=1e-5)
    assert isinstance(out, Tensor)
