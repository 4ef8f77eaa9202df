"""A multilayer perceptron, trained by a plain loop without a training mode."""
import numpy as np
from tinygrad.nn.optim import SGD
from tinygrad.tensor import Tensor

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 2)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int32)


class TinyNet:
    def __init__(self):
        Tensor.manual_seed(5)
        self.l1 = Tensor.randn(2, 16) * 0.5
        self.l2 = Tensor.randn(16, 2) * 0.5

    def __call__(self, x):
        return x.dot(self.l1).tanh().dot(self.l2)


net = TinyNet()
optim = SGD([net.l1, net.l2], lr=0.5)
losses = []
for _ in range(60):
    loss = net(Tensor(X)).sparse_categorical_crossentropy(Tensor(Y))
    optim.zero_grad()
    loss.backward()
    optim.step()
    losses.append(loss.item())
assert losses[-1] < 0.6 * losses[0], (losses[0], losses[-1])
accuracy = (net(Tensor(X)).argmax(axis=1) == Tensor(Y)).mean().item()
assert accuracy > 0.8, accuracy
