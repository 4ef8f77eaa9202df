"""Gradients: by backward, by hand, and on the way."""
import numpy as np
from tinygrad import Tensor

w = Tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)
x = Tensor([[1.0, 2.0]])
hidden = x.dot(w)
loss = hidden.relu().square().sum()
loss.backward()
h = x.numpy() @ w.numpy()
by_hand = x.numpy().T @ (2 * np.maximum(h, 0) * (h > 0))
np.testing.assert_allclose(w.grad.numpy(), by_hand, rtol=1e-6)
np.testing.assert_allclose(hidden.grad.numpy(), 2 * np.maximum(h, 0), rtol=1e-6)
loss.backward()
np.testing.assert_allclose(w.grad.numpy(), 2 * by_hand, rtol=1e-6)
w.grad = None
(w * 3).sum().backward()
assert w.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
(grad,) = (w ** 2).sum().gradient(w)
np.testing.assert_allclose(grad.numpy(), 2 * w.numpy())
