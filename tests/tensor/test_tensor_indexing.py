"""x[...] and x[...] = y against PyTorch."""
# ruff: noqa: B023   (each lambda runs before its loop goes on)

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from hypothesis import given, settings as hypothesis_settings, strategies as st  # noqa: E402
from torch_reference import Tensor, check, torch  # noqa: E402

BASIC = [0, -1, (1, 2), (slice(1, 3),), (slice(None), -1), (slice(None, None, 2),), (slice(3, 0, -1),),
         (slice(None, None, -2), 1),
         (None, 1), (Ellipsis, 0), (1, Ellipsis), (Ellipsis,), (None, Ellipsis, None), (slice(5, 2),),
         (slice(-3, -1), None, 2),
         (slice(1, 100), slice(-100, 2)), (0, 0, 0), (slice(None, None, 3), slice(None, None, -1), slice(1, 4, 2))]


@pytest.mark.parametrize("key", BASIC, ids=str)
def test_numbers_and_slices(key):
    if any(isinstance(k, slice) and (k.step or 1) < 0 for k in (key if isinstance(key, tuple) else (key,))):
        x = np.arange(60, dtype="float32").reshape(4, 3, 5)
        assert Tensor(x)[key].numpy().tolist() == x[key].tolist()      # PyTorch has no negative steps
    else:
        check(lambda x: x[key], (4, 3, 5))


def test_no_kernel_for_a_view():
    x = Tensor(np.zeros((4, 3, 5), "float32"))
    assert x[1:3, :, ::2].schedule() == [] and x[::-1, 1].schedule() == []


ADVANCED = {
    "one": lambda x, i, j: x[i], "second axis": lambda x, i, j: x[:, j], "two": lambda x, i, j: x[i, j],
    "two, apart": lambda x, i, j: x[i, :, j], "with a slice": lambda x, i, j: x[1:, j], "with a number": lambda x, i,
    j: x[2, j],
    "number between": lambda x, i, j: x[i, 1, j], "after ...": lambda x, i, j: x[..., j], "with None": lambda x, i,
    j: x[None, i],
    "broadcast": lambda x, i, j: x[i.reshape(-1, 1), j], "matrix": lambda x, i, j: x[i.reshape(2, 2)],
    "all three": lambda x, i, j: x[i, j, j], "step before": lambda x, i, j: x[::2, j],
    "one number as a tensor, apart": lambda x, i, j: x[i[0], :, j], "two of them": lambda x, i, j: x[i[0], j, j[1]],
}


@pytest.mark.parametrize("name", ADVANCED)
def test_tensors_as_indices(name):
    i, j = np.array([3, 0, -1, 2]), np.array([0, 2, -2, 1])
    check(lambda x: ADVANCED[name](x, Tensor(i), Tensor(j)),
          lambda x: ADVANCED[name](x, torch.tensor(i), torch.tensor(j)), (4, 3, 5))


def test_lists_and_masks():
    check(lambda x: x[[0, 2, 0]], (4, 3))
    check(lambda x: x[:, [2, 1]], (4, 3))
    check(lambda x: x[x > 0], (4, 3))
    mask = np.array([True, False, True, False])
    check(lambda x: x[Tensor(mask)], lambda x: x[torch.tensor(mask)], (4, 3))
    check(lambda x: x[Tensor(mask), 1:], lambda x: x[torch.tensor(mask), 1:], (4, 3))
    check(lambda x: x.masked_select(x > 0.5), (4, 3))
    check(lambda x: x.masked_fill(x > 0.5, 9.0), (4, 3))
    assert Tensor([1, 2, 3])[Tensor([], dtype="int32")].shape == (0,)


def test_repeated_indices_add_up_in_the_gradient():
    x = Tensor([1.0, 2.0, 3.0])
    x[Tensor([0, 0, 2])].sum().backward()
    assert x.grad.tolist() == [2.0, 0.0, 1.0]


def test_lookups_by_name():
    index = np.array([[0, 2], [1, 1], [3, 0]])
    for dim in (0, 1):
        check(lambda x: x.gather(dim, Tensor(index)), lambda x: x.gather(dim, torch.tensor(index)), (4, 4))
    check(lambda x: x.index_select(1, Tensor([2, 0])), lambda x: x.index_select(1, torch.tensor([2, 0])), (3, 4))
    check(lambda x: x.take(Tensor([2, 5, 0])), lambda x: x.take(torch.tensor([2, 5, 0])), (3, 4))


def test_a_tensor_is_iterated_row_by_row():
    assert [row.tolist() for row in Tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    a, b = Tensor([5, 6])
    assert a.item() == 5 and b.item() == 6 and len(Tensor.zeros(3, 2)) == 3 and 6 in Tensor([5, 6])


SETS = {
    "number": (1, 9.0), "negative": (-1, 9.0), "slice": ((slice(1, 3),), 7.0), "two": ((slice(None), 2), 7.0),
    "row": (0, [1.0, 2.0, 3.0, 4.0, 5.0]), "part": ((slice(1, 3), slice(0, 2)), [[1.0, 2.0], [3.0, 4.0]]),
    "all": (slice(None), 3.0),
    "steps": ((slice(None, None, 2), slice(1, None, 3)), 5.0), "broadcast": ((slice(0, 2),), [[1.0], [2.0]]),
    "...": (..., 4.0),
    "list": ([0, 2], 8.0), "pairs": (([0, 1], [1, 2]), [7.0, 8.0]), "mixed": ((slice(1, 4), [0, 3]), 6.0),
}


@pytest.mark.parametrize("name", SETS)
def test_assigned_elements_are_pytorchs_and_earlier_results_stay(name):
    key, value = SETS[name]
    start = np.arange(20, dtype="float32").reshape(4, 5)
    ours, theirs = Tensor(start), torch.tensor(start)
    before = ours * 1
    ours[key] = value if isinstance(value, float) else Tensor(value)
    theirs[key] = value if isinstance(value, float) else torch.tensor(value)
    assert ours.tolist() == theirs.tolist()
    assert before.tolist() == start.tolist()                # a value computed before keeps the old one


def test_setting_by_mask_and_gradient():
    x = Tensor([1.0, -2.0, 3.0])
    x[x < 0] = 0
    assert x.tolist() == [1.0, 0.0, 3.0]
    y, z = Tensor([1.0, 2.0, 3.0]), Tensor([5.0])
    w = y * 2
    w[1:2] = z * 3
    w.sum().backward()
    assert y.grad.tolist() == [2.0, 0.0, 2.0] and z.grad.tolist() == [3.0]


@hypothesis_settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_slices_are_numpys(data):
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5, 7]), min_size=1, max_size=3)))
    bound = st.one_of(st.none(), st.integers(-8, 8))
    step = st.one_of(st.none(), st.sampled_from([1, 2, 3, -1, -2]))
    key = tuple(data.draw(st.one_of(st.builds(slice, bound, bound, step), st.integers(-n, n - 1))) for n in shape)
    x = np.arange(np.prod(shape), dtype="int32").reshape(shape)
    assert Tensor(x)[key].numpy().tolist() == x[key].tolist()


def test_one_truth_value_chooses_all_or_nothing_along_a_new_axis():
    array = np.arange(6.0).reshape(2, 3)
    for key in (True, False):
        np.testing.assert_array_equal(Tensor(array)[key].numpy(), array[key])
        np.testing.assert_array_equal(Tensor(array)[Tensor(key)].numpy(), array[key])
        x, y = Tensor(array), array.copy()
        x[Tensor(key)] = Tensor([7.0, 8.0, 9.0])
        y[key] = [7.0, 8.0, 9.0]
        np.testing.assert_array_equal(x.numpy(), y)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0,)], ids=str)
def test_writes_and_gradients_by_indices_that_are_empty(shape):
    def change(x):
        v, i = x * 1, (Tensor if isinstance(x, Tensor) else torch.tensor)(np.zeros(shape, "int64"))
        v[1:, i] *= 2
        return v + v[:, i].sum()
    check(change, (4, 3))
