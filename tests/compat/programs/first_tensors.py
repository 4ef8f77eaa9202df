"""First tensors: making them, computing with them, reading them."""
import numpy as np
from tinygrad import Device, Tensor, dtypes

a, b = Tensor([1, 2, 3]), Tensor([4.0, 5.0, 6.0])
assert a.dtype == dtypes.int32 and b.dtype == dtypes.float32 and a.shape == (3,)
assert (a + b).tolist() == [5.0, 7.0, 9.0] and (a * 2).numpy().tolist() == [2, 4, 6]
m = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
assert (m @ m.T).tolist() == [[5.0, 14.0], [14.0, 50.0]] and m.sum(axis=0).tolist() == [3.0, 5.0, 7.0]
assert Tensor.zeros(2, 2).tolist() == [[0.0, 0.0]] * 2 and Tensor.eye(2).tolist() == [[1.0, 0.0], [0.0, 1.0]]
assert Tensor.full((2,), 7).tolist() == [7, 7] and Tensor.arange(0, 10, 5).tolist() == [0, 5]
Tensor.manual_seed(3)
r = Tensor.rand(1000)
assert 0 <= r.min().item() and r.max().item() < 1 and abs(r.mean().item() - 0.5) < 0.05
x = Tensor([-2.0, 3.0])
assert x.relu().tolist() == [0.0, 3.0] and (x > 0).where(x ** 3, x).tolist() == [-2.0, 27.0]
assert abs(Tensor([1.0, 2.0, 3.0]).softmax().sum().item() - 1) < 1e-6
assert isinstance(Device.DEFAULT, str) and x.device == Device.DEFAULT
assert isinstance(x + 1, Tensor) and "Tensor" in repr(x)
