"""A convolutional network with batch norm and dropout, on the digits that come along."""
from tinygrad import Tensor, nn
from tinygrad.nn.datasets import digits

X_train, Y_train, X_test, Y_test = digits()
X_train, Y_train = X_train[:128].float() / 16, Y_train[:128]


class Model:
    def __init__(self):
        self.c1, self.bn, self.l1 = nn.Conv2d(1, 6, 3), nn.BatchNorm(6), nn.Linear(6 * 3 * 3, 10)

    def __call__(self, x):
        x = self.bn(self.c1(x)).relu().max_pool2d((2, 2))
        return self.l1(x.flatten(1).dropout(0.1))


Tensor.manual_seed(1)
model = Model()
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.02)
with Tensor.train():
    losses = []
    for _ in range(15):
        opt.zero_grad()
        loss = model(X_train).sparse_categorical_crossentropy(Y_train).backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0] / 2, losses
assert isinstance(model.c1.weight, Tensor) and Tensor.training is False
assert (model(X_train).argmax(1) == Y_train).mean().item() > 0.5
