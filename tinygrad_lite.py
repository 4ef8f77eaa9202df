"""A whole tensor library in one file: memory, views, ops, gradients, and a network that learns to read.
Read it from top to bottom; each part needs only the parts above it.

    Buffer     memory: one flat row of float32 numbers
    Tensor     a way to look at a buffer: shape, strides, offset. Many tensors may look at one buffer
    Op         a step of arithmetic that runs forward and knows how to send a gradient back
    backward   walks the ops from the loss to the parameters and adds the gradients up on the way
    main       trains a network with one hidden layer on MNIST:  python tinygrad_lite.py
"""

import gzip, math, os, pathlib
import numpy as np


class Buffer:
    """Flat float32 storage. It has no shape."""

    def __init__(self, values): self.data = np.array(values, np.float32).reshape(-1)
    def __len__(self): return len(self.data)
    def __getitem__(self, i): return self.data[i]
    def __setitem__(self, i, value): self.data[i] = value


def row_major(shape):
    """Steps in memory for one step along each axis, when rows lie end to end: (2, 3, 4) -> (12, 4, 1)."""
    return tuple(math.prod(shape[axis + 1:]) for axis in range(len(shape)))

class Tensor:
    """A view of a buffer: element (i, j) is buf[offset + i * strides[0] + j * strides[1]]."""

    def __init__(self, buf, shape=None, strides=None, offset=0, requires_grad=False):
        if not isinstance(buf, Buffer):                     # a number, nested lists, an array: copied
            shape, buf = np.shape(buf) if shape is None else shape, Buffer(buf)
        self.buf, self.offset = buf, offset
        self.shape = tuple(shape) if shape is not None else (len(buf),)
        self.strides = tuple(strides) if strides is not None else row_major(self.shape)
        self.requires_grad = requires_grad
        self.grad = None                                    # a Tensor, once backward() was here
        self._ctx = None                                    # the Op that made this tensor; a leaf has none

    def numpy(self):
        """The same memory as a NumPy array (which counts strides in bytes): writing to it writes here."""
        strides = [4 * stride for stride in self.strides]
        return np.ndarray(self.shape, np.float32, self.buf.data, 4 * self.offset, strides)

    def numel(self): return math.prod(self.shape)
    def item(self): return self.numpy().item()
    def is_contiguous(self):
        """Are the elements in memory in reading order? The stride of an axis of size 1 does not matter."""
        axes = zip(self.shape, self.strides, row_major(self.shape))
        return self.numel() == 0 or all(size == 1 or stride == packed for size, stride, packed in axes)

    # Views move no element: they change where to look. As Ops (further down) they also pass gradients back.
    def __getitem__(self, index):
        """t[1, 2] is a number; t[2:5], t[0] and t[::-1, 3] are views."""
        index = index if isinstance(index, tuple) else (index,)
        view = Slice(self, index=index).apply()
        return view if view.shape or not self.shape else self.buf[view.offset]

    def __setitem__(self, index, value): self.numpy()[index] = value
    def transpose(self, a=-2, b=-1): return Transpose(self, axes=(a, b)).apply()
    def reshape(self, *shape): return Reshape(self, shape=shape).apply()
    T = property(transpose)

    # Sugar, so that formulas read like formulas.
    def __add__(self, other): return Add(self, other).apply()
    def __mul__(self, other): return Mul(self, other).apply()
    def __matmul__(self, other): return MatMul(self, other).apply()
    def __neg__(self): return self * -1
    def __sub__(self, other): return self + -1 * other
    __radd__, __rmul__ = __add__, __mul__
    def __array__(self, dtype=None, copy=None): return np.array(self.numpy(), dtype)
    def __repr__(self): return f"Tensor({self.numpy()}, shape={self.shape}, strides={self.strides})"


class Op:
    """One step. It stays reachable from its result, as `_ctx`, and so do its inputs: that is the graph."""

    def __init__(self, *inputs, **settings):
        self.inputs = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
        self.__dict__.update(settings)

    def apply(self):
        out = self.forward(*[x.numpy() for x in self.inputs])
        out = out if isinstance(out, Tensor) else Tensor(out)
        if any(x.requires_grad for x in self.inputs): out.requires_grad, out._ctx = True, self
        return out

    def forward(self, *arrays): raise NotImplementedError   # arrays -> an array; a view op: -> a Tensor
    def backward(self, grad): raise NotImplementedError     # d loss / d out -> [d loss / d input, ...]

def unbroadcast(grad, shape):
    """Broadcasting reads an element many times: its gradient is the sum over all the readings."""
    grad = grad.sum(axis=tuple(range(grad.ndim - len(shape))))                    # axes put in front
    return grad.sum(axis=tuple(i for i, size in enumerate(shape) if size == 1), keepdims=True)  # stretched

class Add(Op):                                              # d(a + b) = da + db
    def forward(self, a, b): return a + b
    def backward(self, grad): return [unbroadcast(grad, x.shape) for x in self.inputs]

class Mul(Op):                                              # d(a * b) = b da + a db
    def forward(self, a, b):
        self.a, self.b = a, b
        return a * b
    def backward(self, grad):
        return [unbroadcast(grad * self.b, self.a.shape), unbroadcast(grad * self.a, self.b.shape)]

class MatMul(Op):                                           # d(A B) = dA B + A dB
    def forward(self, a, b):
        if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2]:
            raise ValueError(f"cannot multiply {a.shape} by {b.shape}; write a vector as (n, 1) or (1, n)")
        self.a, self.b = a, b
        return a @ b
    def backward(self, grad):
        return [unbroadcast(grad @ np.swapaxes(self.b, -1, -2), self.a.shape),
                unbroadcast(np.swapaxes(self.a, -1, -2) @ grad, self.b.shape)]

class ReLU(Op):                                             # max(x, 0): gradient passes where x > 0
    def forward(self, x):
        self.passes = x > 0
        return np.maximum(x, 0)
    def backward(self, grad): return [grad * self.passes]

def log_softmax(x):
    """log(exp(x) / sum(exp(x))) along the last axis. Without its maximum, x cannot overflow exp."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

class Softmax(Op):                                          # ds_i = s_i (dx_i - sum_j s_j dx_j)
    def forward(self, x):
        self.s = np.exp(log_softmax(x))
        return self.s
    def backward(self, grad): return [self.s * (grad - (grad * self.s).sum(axis=-1, keepdims=True))]

class CrossEntropy(Op):                                     # mean of -log_softmax(logits)[row, label]
    def __init__(self, logits, labels):                     # (rows, classes) and (rows,) class numbers
        super().__init__(logits)
        self.labels = np.asarray(labels, dtype=int)
    def forward(self, logits):
        if logits.ndim != 2 or self.labels.shape != logits.shape[:1]:
            raise ValueError(f"need (rows, classes) and (rows,), not {logits.shape} and {self.labels.shape}")
        self.log_p, self.rows = log_softmax(logits), np.arange(len(logits))
        return -self.log_p[self.rows, self.labels].mean()
    def backward(self, grad):                               # (softmax(logits) - one_hot(labels)) / rows
        error = np.exp(self.log_p)
        error[self.rows, self.labels] -= 1
        return [grad * error / len(self.rows)]

# The views: forward is a Tensor on the same buffer, backward puts the gradient where the elements came from.
class Slice(Op):
    def forward(self, array):
        x, shape, strides = self.inputs[0], [], []
        offset, missing = x.offset, len(x.shape) - len(self.index)
        if missing < 0: raise IndexError(f"{len(self.index)} indices for a tensor of shape {x.shape}")
        for i, size, stride in zip(self.index + (slice(None),) * missing, x.shape, x.strides):
            if isinstance(i, slice):
                start, stop, step = i.indices(size)
                shape.append(len(range(start, stop, step)))
                strides.append(step * stride)
                offset += start * stride if shape[-1] else 0
            elif -size <= i < size: offset += i % size * stride
            else: raise IndexError(f"index {i} is outside an axis of size {size}")
        return Tensor(x.buf, shape, strides, offset)
    def backward(self, grad):                               # what the slice left out had no say in the loss
        whole = np.zeros(self.inputs[0].shape, np.float32)
        whole[self.index] = grad
        return [whole]

class Transpose(Op):
    def forward(self, array):
        x, (a, b) = self.inputs[0], self.axes
        shape, strides = list(x.shape), list(x.strides)
        shape[a], shape[b], strides[a], strides[b] = shape[b], shape[a], strides[b], strides[a]
        return Tensor(x.buf, shape, strides, x.offset)
    def backward(self, grad): return [np.swapaxes(grad, *self.axes)]

class Reshape(Op):
    def forward(self, array):
        x, new = self.inputs[0], array.reshape(*self.shape)
        if not np.may_share_memory(new, array): return new  # no strides can say it: the elements must move
        return Tensor(x.buf, new.shape, [s // 4 for s in new.strides], x.offset)
    def backward(self, grad): return [grad.reshape(self.inputs[0].shape)]


def backward(loss):
    """Add d loss / d t to t.grad, for every t the loss was made from. Start afresh with t.grad = None."""
    if not loss.requires_grad: raise ValueError("no parameters: make them with requires_grad=True")
    order, seen, stack = [], set(), [(loss, False)]
    while stack:                                            # sort: inputs first. A loop, so depth is no limit
        t, inputs_done = stack.pop()
        if inputs_done: order.append(t)
        elif t not in seen:
            seen.add(t)
            stack += [(t, True)] + [(x, False) for x in (t._ctx.inputs if t._ctx else []) if x.requires_grad]
    grads = {loss: np.ones(loss.shape, np.float32)}
    for t in reversed(order):                               # users first, so that grads[t] is complete
        grad = grads.pop(t)
        t.grad = Tensor(grad if t.grad is None else t.grad.numpy() + grad)
        for x, g in zip(t._ctx.inputs, t._ctx.backward(grad)) if t._ctx else []:
            if x.requires_grad: grads[x] = grads[x] + g if x in grads else g      # used twice: they add


def load_digits():
    """(x_train, y_train, x_test, y_test): MNIST from files or the network, else scikit-learn's 8x8 digits."""
    here = pathlib.Path(__file__).resolve().parent
    for folder in (pathlib.Path(os.environ.get("GLASSGRAD_DATA", here)), here.parent / "shared" / "data"):
        if (folder / "mnist").is_dir():
            def read(name): return np.frombuffer(gzip.open(folder / "mnist" / name).read(), np.uint8)
            def images(name): return read(name)[16:].reshape(-1, 784) / np.float32(255)
            return (images("train-images-idx3-ubyte.gz"), read("train-labels-idx1-ubyte.gz")[8:],
                    images("t10k-images-idx3-ubyte.gz"), read("t10k-labels-idx1-ubyte.gz")[8:])
    from sklearn import datasets                            # pip install scikit-learn
    try:
        x, y = datasets.fetch_openml("mnist_784", return_X_y=True, as_frame=False, parser="liac-arff")
        return x[:60000] / 255, y[:60000].astype(int), x[60000:] / 255, y[60000:].astype(int)
    except OSError:
        print("MNIST cannot be reached; learning the 8x8 digits that come with scikit-learn instead")
        x, y = datasets.load_digits(return_X_y=True)
        train = np.arange(len(x)) % 6 > 0                    # every sixth image is kept for the test
        return x[train] / 16, y[train], x[~train] / 16, y[~train]


def main(epochs=5, learning_rate=0.3, batch=64, seed=0):
    x_train, y_train, x_test, y_test = load_digits()
    random = np.random.default_rng(seed)
    W1 = Tensor(random.normal(0, 0.02, (x_train.shape[1], 128)), requires_grad=True)
    W2 = Tensor(random.normal(0, 0.02, (128, 10)), requires_grad=True)
    b1, b2 = Tensor(np.zeros(128), requires_grad=True), Tensor(np.zeros(10), requires_grad=True)

    def model(x):                                           # (rows, 784) -> (rows, 128) -> (rows, 10)
        hidden = ReLU(Add(MatMul(x, W1).apply(), b1).apply()).apply()
        return Add(MatMul(hidden, W2).apply(), b2).apply()

    for epoch in range(epochs if len(x_train) > 10_000 else 12 * epochs):         # few images: more rounds
        total, order = 0.0, random.permutation(len(x_train))
        for rows in np.split(order, range(batch, len(order), batch)):
            loss = CrossEntropy(model(x_train[rows]), y_train[rows]).apply()
            backward(loss)
            for p in (W1, b1, W2, b2):
                p.numpy()[...] -= learning_rate * p.grad.numpy()
                p.grad = None
            total += loss.item() * len(rows)
        accuracy = (model(x_test).numpy().argmax(axis=1) == y_test).mean()
        print(f"epoch {epoch + 1}: loss {total / len(order):.4f}, test accuracy {accuracy:.2%}", flush=True)
    return accuracy


if __name__ == "__main__":
    main()
