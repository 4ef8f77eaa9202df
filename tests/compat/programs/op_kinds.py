"""Three kinds of operations: element by element, reductions, movements."""
from tinygrad import Tensor
from tinygrad.ops import BinaryOps, MovementOps, ReduceOps, UnaryOps

x = Tensor([[1.0, 4.0], [9.0, 16.0]])


def has(tensor, op):
    return op in [node.op for node in tensor.lazydata.toposort()]


assert x.sqrt().tolist() == [[1.0, 2.0], [3.0, 4.0]] and has(x.sqrt(), UnaryOps.SQRT)
assert (x - 1).tolist() == [[0.0, 3.0], [8.0, 15.0]] and has(x + x.exp2(), BinaryOps.ADD)
assert x.sum(0).tolist() == [10.0, 20.0] and has(x.sum(0), ReduceOps.SUM)
assert x.max(1).tolist() == [4.0, 16.0] and has(x.max(1), ReduceOps.MAX)
assert x.permute(1, 0).tolist() == [[1.0, 9.0], [4.0, 16.0]] and has(x.permute(1, 0), MovementOps.PERMUTE)
assert x.reshape(4).pad(((1, 1),)).tolist() == [0.0, 1.0, 4.0, 9.0, 16.0, 0.0]
assert has(x.pad(((1, 1), (0, 0))), MovementOps.PAD)
assert x.flip(0).shrink(((0, 1), (0, 2))).tolist() == [[9.0, 16.0]]
assert x.reshape(2, 1, 2).expand(2, 3, 2).shape == (2, 3, 2)
for name in ("EXP2", "LOG2", "SIN"):
    assert getattr(UnaryOps, name) in list(UnaryOps)
