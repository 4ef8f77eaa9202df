"""What would run: the schedule of an expression, kernel by kernel."""
from tinygrad import Tensor
from tinygrad.engine.realize import run_schedule
from tinygrad.helpers import Context

a, b = Tensor.rand(8, 8).realize(), Tensor.rand(8, 8).realize()
fused = (a + b).relu().sum()
plan = fused.schedule()
assert len(plan) == 1 and plan[0].ast is not None and len(fused.schedule()) == 1
assert len(a[1:3, ::2].permute(1, 0).schedule()) == 0, "a view needs no kernel"
assert len(((Tensor.randn(4, 4) + 1) * 2).relu().schedule()) == 1
two = (a @ b).softmax(1) @ b
plan = two.schedule()
assert len(plan) > 1
run_schedule(plan)
assert two.schedule() == []
with Context(NOOPT=1):
    plain = ((a + b) * 3).tolist()
assert plain == ((a + b) * 3).tolist()
