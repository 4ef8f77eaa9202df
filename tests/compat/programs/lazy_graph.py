"""Nothing runs before it is needed: an expression is a graph of nodes."""
from tinygrad import GlobalCounters, Tensor
from tinygrad.ops import BinaryOps, UnaryOps
from tinygrad.uop.ops import Ops, UOp

x = Tensor([1.0, 2.0, 3.0]).realize()
GlobalCounters.reset()
y = ((x + 1) * 2).relu()
assert GlobalCounters.kernel_count == 0 and y.uop.realized is None
names = [node.op for node in y.uop.toposort()]
assert Ops.ADD in names and Ops.MUL in names and BinaryOps.ADD in names and UnaryOps.EXP2 not in names
assert isinstance(y.uop, UOp) and y.lazydata is y.uop and y.lazydata.srcs == y.uop.src
assert y.tolist() == [4.0, 6.0, 8.0]
y.realize()
assert y.uop.realized is not None and GlobalCounters.kernel_count >= 1
