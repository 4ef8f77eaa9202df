"""Views: the same memory with other shapes and strides."""
from tinygrad import Tensor
from tinygrad.shape.shapetracker import ShapeTracker
from tinygrad.shape.view import View

x = Tensor.arange(12).reshape(3, 4).realize()
st = x.T.lazydata.st
assert isinstance(st, ShapeTracker) and st.shape == (4, 3) and st.views[0].strides == (1, 4)
assert isinstance(st.views[0], View)
assert x[1:, ::2].tolist() == [[4, 6], [8, 10]] and x[:, -1].tolist() == [3, 7, 11]
assert x.reshape(2, 6).T[0].tolist() == [0, 6]
assert x[0].expand(3, 4).tolist() == [[0, 1, 2, 3]] * 3
assert x.squeeze(0).shape == (3, 4), "an axis that is not 1 stays"
row = x[1].contiguous()
assert row.tolist() == [4, 5, 6, 7]
