"""Sort, topk, middles, finding, scatter, einsum: checked against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest
from torch_reference import TORCH, Tensor, check, dtypes, seeded, torch

from glassgrad import Device, DTypeError, InputError, JitError, ShapeError
from glassgrad.compiler.graph import ops as o
from glassgrad.tensor.formulas import sorting

SHAPES = [(0,), (1,), (3, 5), (2, 70), (4, 0)]


def same(ours, theirs):
    assert ours.shape == tuple(theirs.shape)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


# -- order ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "float16"])
def test_sort_is_stable(shape, descending, dtype):
    rng = seeded(shape, dtype)
    array = rng.integers(0 if dtype in ("uint8", "bool") else -9, 9, shape).astype(dtype)    # many equal values
    ours, places = Tensor(array).sort(descending=descending)
    theirs, expected = torch.sort(torch.from_numpy(array), stable=True, descending=descending)
    same(ours, theirs)
    same(places, expected)
    assert ours.dtype.name == dtype and places.dtype is dtypes.int32


@pytest.mark.parametrize("n", [12, 200])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_orders_special_values(n, descending):
    values = [float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 1e-40, -1e-40, 3e38, -float("nan"), 1.0, -1.0, 0.0]
    array = np.array((values * n)[:n], "float32")
    ours, places = Tensor(array).sort(descending=descending)
    theirs, expected = torch.sort(torch.from_numpy(array), stable=True, descending=descending)
    same(ours, theirs)
    same(places, expected)


def test_sort_limits_of_integers():
    for dtype in ("int8", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        info = np.iinfo(dtype)
        array = np.array([info.max, info.min, 1, info.max - 1, info.min + 1] * 20, dtype)
        assert Tensor(array).sort()[0].tolist() == np.sort(array).tolist()


@pytest.mark.parametrize("dim", [0, 1, -1, 2])
def test_sort_along_axes_and_gradient(dim):
    check(lambda x: x.sort(dim)[0], (3, 4, 5))
    check(lambda x: x.transpose(0, 2).sort(dim)[0], (3, 4, 5))
    check(lambda x: x[:, ::-1].sort(dim, True)[0], lambda x: x.flip(1).sort(dim, True)[0], (3, 4, 5))
    check(lambda x: (x.sort(dim)[0] ** 2).cumsum(0), (3, 70, 2))


def test_sort_of_one_number():
    value, place = Tensor(5.0).sort()
    assert value.shape == place.shape == () and (value.item(), place.item()) == (5.0, 0)


def test_sort_second_gradient():
    x, y = Tensor([3.0, 1.0, 2.0]), torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    first = (x.sort()[0] ** 3 * Tensor([1.0, 2.0, 3.0])).sum().gradient(x)[0]
    theirs, = torch.autograd.grad((y.sort()[0] ** 3 * torch.tensor([1.0, 2.0, 3.0])).sum(), y, create_graph=True)
    second, = torch.autograd.grad((theirs ** 2).sum(), y)
    np.testing.assert_allclose((first ** 2).sum().gradient(x)[0].numpy(), second.numpy())


@pytest.mark.parametrize(
    "shape,k,dim",
    [
        ((5,), 0, 0),
        ((5,), 5, 0),
        ((500,), 7, 0),
        ((3, 500), 100, 1),
        ((500, 3), 1, 0),
        ((2, 90, 2), 20, 1),
        ((1, 1), 1, 1),
    ],
)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(shape, k, dim, largest):
    check(lambda x: x.topk(k, dim, largest)[0], shape)
    array = seeded(shape, k).permutation(int(np.prod(shape))).reshape(shape).astype("float32")
    same(Tensor(array).topk(k, dim, largest)[1], torch.topk(torch.from_numpy(array), k, dim, largest)[1])


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_rows_are_ordered_in_fewer_passes_for_groups_of_threads(dtype, monkeypatch):
    """On a GPU longer rows are merged, and topk finds two bits of its smallest value at once."""
    x = Tensor(seeded(dtype).integers(0, 200, (3, 4500)).astype(dtype)).realize()
    monkeypatch.setattr(sorting, "_has_groups", lambda node: False)
    array, passes = x.numpy(), [len(made.schedule()) for made in (x.sort()[1], x.topk(40)[1])]
    monkeypatch.setattr(sorting, "_has_groups", lambda node: True)
    fewer = [len(made.schedule()) for made in (x.sort()[1], x.topk(40)[1])]
    assert fewer[0] < passes[0] or dtype == "uint8"
    assert fewer[1] < passes[1], "about half the passes over the bits"
    np.testing.assert_array_equal(x.sort()[1].numpy(), np.argsort(array, 1, kind="stable"))
    np.testing.assert_array_equal(x.topk(40)[1].numpy(), np.argsort(-array.astype(int), 1, kind="stable")[:, :40])


def test_topk_of_equal_values_takes_the_first():
    values, places = Tensor([1.0] * 300).topk(3)
    assert values.tolist() == [1.0] * 3 and places.tolist() == [0, 1, 2]
    array = np.array([2.0, 1.0] * 200, "float32")
    assert Tensor(array).topk(3)[1].tolist() == [0, 2, 4]
    assert np.isnan(Tensor(np.array([1.0] * 300 + [np.nan], "float32")).topk(2)[0].numpy()).tolist() == [True, False]
    with pytest.raises(InputError, match="k from 0 to 3"):
        Tensor([1, 2, 3]).topk(4)


def test_kthvalue_and_msort():
    check(lambda x: x.kthvalue(3, 1)[0], (4, 7))
    check(lambda x: x.kthvalue(3, 0, True)[0], (4, 7))
    check(lambda x: x.msort(), (4, 7))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "uint8"])
@pytest.mark.parametrize("n", [64, 65, 1001])
def test_a_rank_of_a_long_axis_is_found_without_a_sort(n, dtype):
    rng = np.random.default_rng(n)
    array = rng.integers(0, 50, (3, n)).astype(dtype)              # with equal values
    if array.dtype.kind == "f":
        array[1, ::2], array[2, 5], array[2, 7] = np.nan, np.inf, -np.inf
    x, theirs = Tensor(array), torch.from_numpy(array)
    for k in (1, n // 3, n):
        values, places = x.kthvalue(k, 1)
        same(values, theirs.kthvalue(k, 1)[0])
        np.testing.assert_array_equal(np.take_along_axis(array, places.numpy()[:, None], 1)[:, 0], values.numpy())
    same(x.median(1)[0], theirs.median(1)[0])
    same(x.nanmedian(1)[0], theirs.nanmedian(1)[0])
    same(x.median(0)[0], theirs.median(0)[0])
    assert n <= 64 or not any(node.op is o.SCATTER for node in x.median(1)[0].uop.toposort())


def test_quantiles_of_infinities_are_those_of_pytorch():
    """An element that is chosen is not interpolated with itself: infinity less itself is no number."""
    array = np.array([[1, np.inf, np.inf], [-np.inf, -np.inf, 2]], "float32")
    for share in (0.0, 0.5, 1.0):
        for how in ("lower", "higher", "nearest"):
            same(Tensor(array).quantile(share, 1, interpolation=how),
                 torch.from_numpy(array).quantile(share, 1, interpolation=how))


@pytest.mark.parametrize("shares", [[0.3], [0.1, 0.5], [0.0, 0.2, 0.5, 0.9, 1.0]])
def test_few_and_many_quantiles_of_long_rows(shares):
    array = np.random.default_rng(0).standard_normal((3, 301)).astype("float32")
    theirs = torch.from_numpy(array).quantile(torch.tensor(shares), 1)
    np.testing.assert_allclose(Tensor(array).quantile(Tensor(shares), 1).numpy(), theirs.numpy(), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1,), (6,), (7,), (4, 5), (3, 100)])
def test_median(shape):
    check(lambda x: x.median(), shape)
    check(lambda x: x.median(-1)[0], shape)
    check(lambda x: x.median(0, True)[0], shape)
    check(lambda x: x.median(0)[0], shape, dtype="int32")


def test_median_of_nan():
    array = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, 3.0]], "float32")
    same(Tensor(array).median(1)[0], torch.from_numpy(array).median(1)[0])
    same(Tensor(array).median(1)[1], torch.from_numpy(array).median(1)[1])
    with pytest.raises(ShapeError, match="no median of nothing"):
        Tensor.zeros(0).median()


@pytest.mark.parametrize("how", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantile(how):
    for q in (0.0, 0.3, 0.5, 1.0):
        check(lambda x, q=q: x.quantile(q, interpolation=how), (9,))
        check(lambda x, q=q: x.quantile(q, 1, interpolation=how), (3, 6))
    for dim, keep in ((0, False), (1, True), (None, True)):
        check(lambda x, d=dim, k=keep: x.quantile(Tensor([0.1, 0.9]), d, k, interpolation=how),
              lambda x, d=dim, k=keep: x.quantile(torch.tensor([0.1, 0.9]), d, k, interpolation=how), (3, 6))
    assert np.isnan(Tensor([1.0, float("nan")]).quantile(0.5).item())


# -- finding -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(0,), (9,), (3, 4), (2, 3, 4), (0, 3), ()])
def test_nonzero(shape):
    array = seeded(shape).integers(0, 2, shape).astype("int32")
    same(Tensor(array).nonzero(), torch.from_numpy(np.array(array)).nonzero())
    for ours, theirs in zip(
        Tensor(array).nonzero(as_tuple=True), torch.from_numpy(np.array(array)).nonzero(as_tuple=True)
    ):
        same(ours, theirs) if shape else None


def test_nonzero_of_fixed_size_is_lazy():
    found = Tensor([0, 3, 0, 4]).nonzero(size=3, fill_value=-7)
    assert found.tolist() == [[1], [3], [-7]]
    assert Tensor([1, 1, 1]).nonzero(size=2).tolist() == [[0], [1]]


def test_masked_select():
    mask = np.array([[True, False, True], [False, False, True]])
    check(lambda x: x.masked_select(Tensor(mask) if isinstance(x, Tensor) else torch.from_numpy(mask)), (2, 3))
    check(lambda x: x.masked_select(Tensor(mask[0]) if isinstance(x, Tensor) else torch.from_numpy(mask[0])), (2, 3))
    assert Tensor([1, 2, 3]).masked_select(Tensor([True, False, True]), size=3, fill_value=9).tolist() == [1, 3, 9]
    assert Tensor.zeros(0, 3).masked_select(Tensor.zeros(0, 3).bool()).tolist() == []


def test_finding_inside_a_jit_is_refused():
    from glassgrad.jit import TinyJit

    @TinyJit
    def count(x):
        return x.nonzero()

    with pytest.raises(JitError, match="read inside a jitted function"):
        count(Tensor([1, 0, 2]).realize())


@pytest.mark.parametrize("dtype", ["int32", "float32", "bool"])
@pytest.mark.parametrize("shape", [(0,), (1,), (50,), (6, 20)])
def test_unique(dtype, shape):
    array = seeded(shape, dtype).integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)
    ours = Tensor(array).unique(return_inverse=True, return_counts=True)
    theirs = torch.unique(torch.from_numpy(array), return_inverse=True, return_counts=True)
    for mine, expected in zip(ours, theirs):
        same(mine, expected)
    same(Tensor(array).unique(), theirs[0])


def test_unique_of_nothing_keeps_the_shape_of_its_inverse():
    array = np.zeros((0, 3), np.int32)
    for name in ("unique", "unique_consecutive"):
        ours = getattr(Tensor(array), name)(return_inverse=True, return_counts=True)
        theirs = getattr(torch, name)(torch.from_numpy(array), return_inverse=True, return_counts=True)
        assert [t.shape for t in ours] == [tuple(t.shape) for t in theirs]


def test_bincount_and_searchsorted():
    array = seeded("bins").integers(0, 9, 40).astype("int32")
    same(Tensor(array).bincount(), torch.from_numpy(array).bincount())
    same(Tensor(array).bincount(minlength=20), torch.from_numpy(array).bincount(minlength=20))
    weights = seeded("weights").random(40).astype("float32")
    np.testing.assert_allclose(Tensor(array).bincount(Tensor(weights)).numpy(), np.bincount(array, weights), rtol=1e-5)
    edges, values = np.sort(array), np.array([[-1, 0, 3], [8, 9, 4]], "int32")
    for right in (False, True):
        same(Tensor(edges).searchsorted(Tensor(values), right),
             torch.searchsorted(torch.from_numpy(edges), torch.from_numpy(values), right=right))


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("row", [[1.0, 2.0, 3.0], [1.0, 2.0, math.inf], [1.0, 2.0, math.nan],
                                 [1.0, 1.0, 2.0, math.nan, math.nan], [-math.inf, *[math.nan] * 6], [math.nan] * 3])
def test_searchsorted_takes_nan_to_be_after_all_numbers(row, right):
    edges, values = np.array(row, "float32"), np.array([math.nan, 0, math.inf, -math.inf, 1, 1.5, 2, 5], "float32")
    wanted = np.searchsorted(edges, values, "right" if right else "left")
    assert Tensor(edges).searchsorted(Tensor(values), right).tolist() == wanted.tolist()
    assert Tensor(values).bucketize(Tensor(edges), right=right).tolist() == wanted.tolist()
    rows = Tensor(np.stack([edges, edges[:1].repeat(len(edges))]))
    assert rows.searchsorted(Tensor(np.stack([values, values])), right)[0].tolist() == wanted.tolist()
    if not np.isnan(edges).any():                # PyTorch's answers for others depend on which elements it looks at
        same(Tensor(edges).searchsorted(Tensor(values), right),
             torch.searchsorted(torch.from_numpy(edges), torch.from_numpy(values), right=right))


# -- scatter -------------------------------------------------------------------------------------------------
INDEX = {0: np.array([[0, 2, 1], [2, 0, 0]]), 1: np.array([[0, 2, 3], [3, 1, 0], [2, 1, 3]])}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("how", ["set", "add", "multiply", "sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter(dim, how, dtype, include_self):
    index = INDEX[dim]

    def run(x, source):
        at = Tensor(index) if isinstance(x, Tensor) else torch.from_numpy(index)
        if how in ("set", "add", "multiply"):
            return x.scatter(dim, at, source) if how == "set" else x.scatter(dim, at, source, reduce=how)
        return x.scatter_reduce(dim, at, source, how, include_self=include_self)

    if how in ("set", "add", "multiply") and not include_self:
        return
    check(
        run, (3, 4), index.shape, dtype=dtype, low=-5, high=5, grad=how not in ("set", "add", "multiply")
    )  # PyTorch has none there


def test_scatter_gradient_and_numbers():
    unique = np.array([[3, 1], [0, 2]])
    check(
        lambda x, s: x.scatter(1, Tensor(unique) if isinstance(x, Tensor) else torch.from_numpy(unique), s),
        (2, 4),
        (2, 2),
    )
    check(lambda x: x.scatter(1, Tensor(unique) if isinstance(x, Tensor) else torch.from_numpy(unique), 7.0), (2, 4))
    assert Tensor([1.0, 2.0]).scatter(0, Tensor([1], dtype="int64"), 9, reduce="multiply").tolist() == [1.0, 18.0]
    assert Tensor([1, 2]).scatter(0, Tensor([1]), 9).tolist() == [1, 9]
    assert Tensor([1, 2]).scatter(0, Tensor([], dtype="int32"), Tensor([], dtype="int32")).tolist() == [1, 2]


def test_scatter_says_what_is_wrong():
    with pytest.raises(ShapeError, match="index does not fit"):
        Tensor([1, 2]).scatter(0, Tensor([[0]]), 1)
    with pytest.raises(InputError, match="no such way to combine"):
        Tensor([1, 2]).scatter_reduce(0, Tensor([0]), Tensor([1]), "median")
    with pytest.raises(InputError, match="cannot be deleted"):
        del Tensor([1, 2])[0]


def test_writing_slices():
    at = np.array([2, 0, 2])
    theirs = torch.from_numpy(at)
    check(lambda x, s: x.index_add(0, Tensor(at) if isinstance(x, Tensor) else theirs, s), (4, 2), (3, 2))
    check(lambda x, s: x.index_add(1, Tensor(at) if isinstance(x, Tensor) else theirs, s, alpha=2), (4, 3), (4, 3))
    check(lambda x, s: x.index_copy(0, Tensor(at[:2]) if isinstance(x, Tensor) else theirs[:2], s), (4, 2), (2, 2))
    check(lambda x: x.index_fill(1, Tensor(at) if isinstance(x, Tensor) else theirs, 5.0), (2, 3))
    check(lambda x, s: x.put(Tensor(at[:2]) if isinstance(x, Tensor) else theirs[:2], s), (4, 2), (2,))
    check(lambda x, s: x.put(Tensor(at) if isinstance(x, Tensor) else theirs, s, accumulate=True), (4, 2), (3,))
    check(
        lambda x, s: x.index_put((Tensor(at) if isinstance(x, Tensor) else theirs,), s, accumulate=True),
        (4, 2),
        (3, 2),
    )
    check(lambda x: x.scatter_add(0, Tensor(at) if isinstance(x, Tensor) else theirs, x[:3]), (4,))


# -- axes by name --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "formula,shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ij->", [(3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i", [(3,), (3,)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,jk->...ik", [(2, 2, 3, 4), (4, 5)]),
        ("ba", [(2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("ijj->ij", [(2, 3, 3)]),
        ("ij,ij->j", [(0, 3), (0, 3)]),
        (",ij->ij", [(), (2, 3)]),
        ("i j , j -> i", [(2, 3), (3,)]),
    ],
)
def test_einsum(formula, shapes):
    check(lambda *xs: Tensor.einsum(formula, *xs), lambda *xs: torch.einsum(formula, *xs), *shapes)


def test_einsum_of_integers_and_lists():
    x = Tensor([[1, 2], [3, 4]])
    assert Tensor.einsum("ij,jk->ik", [x, x]).tolist() == (x @ x).tolist()
    assert Tensor.einsum("ij->", x, dtype=dtypes.float32).dtype is dtypes.float32
    for formula in ("ij", "ij,jk->ii", "ij,jk->iz", "i?,jk"):
        with pytest.raises((InputError, ShapeError)):
            Tensor.einsum(formula, Tensor.zeros(2, 2), Tensor.zeros(2, 2))
    with pytest.raises(ShapeError, match="two sizes"):
        Tensor.einsum("ij,jk", Tensor.zeros(2, 3), Tensor.zeros(4, 2))


def test_tensordot():
    check(lambda x, y: x.tensordot(y, 1), lambda x, y: torch.tensordot(x, y, 1), (2, 3), (3, 4))
    check(lambda x, y: x.tensordot(y), lambda x, y: torch.tensordot(x, y), (2, 3, 4), (3, 4, 5))
    check(
        lambda x, y: x.tensordot(y, ([0, 2], [1, 0])),
        lambda x, y: torch.tensordot(x, y, ([0, 2], [1, 0])),
        (2, 3, 4),
        (4, 2, 5),
    )


@pytest.mark.parametrize(
    "formula,sizes,shape,reference",
    [
        ("a b -> b a", {}, (2, 3), lambda x: x.T),
        ("a b c -> a (b c)", {}, (2, 3, 4), lambda x: x.reshape(2, 12)),
        ("(a b) c -> a b c", {"a": 2}, (6, 4), lambda x: x.reshape(2, 3, 4)),
        ("... a b -> ... b a", {}, (2, 3, 4), lambda x: x.mT),
        ("b c h w -> b (c h w)", {}, (2, 3, 4, 5), lambda x: x.reshape(2, 60)),
        ("a 1 b -> a b", {}, (2, 1, 3), lambda x: x[:, 0]),
        ("a b -> a 1 b", {}, (2, 3), lambda x: x[:, None]),
        ("... c -> (... c)", {}, (2, 3, 4), lambda x: x.flatten()),
        ("b t (h d) -> b h t d", {"h": 2}, (1, 3, 8), lambda x: x.reshape(1, 3, 2, 4).transpose(1, 2)),
        ("... -> (...)", {}, (2, 3, 4), lambda x: x.flatten()),
        ("a ... b -> b (...) a", {}, (2, 3, 4, 5), lambda x: x.reshape(2, 12, 5).permute(2, 1, 0)),
        ("a \N{HORIZONTAL ELLIPSIS} -> (\N{HORIZONTAL ELLIPSIS} a) 1 ()", {}, (2, 3, 4),
         lambda x: x.permute(1, 2, 0).reshape(24, 1, 1)),
        ("  a_1   b2->b2 a_1 ", {}, (2, 3), lambda x: x.T),
    ],
)
def test_rearrange(formula, sizes, shape, reference):
    check(lambda x: x.rearrange(formula, **sizes), reference, shape)


def test_rearrange_says_what_is_wrong():
    for formula in ("a b", "a b -> a", "a a -> a a", "(a b -> a b", "a b -> a ! b", "a ... -> a", "(...) -> ...",
                    "a (...) -> (...) a"):
        with pytest.raises(InputError, match="formula cannot be read"):
            Tensor.zeros(2, 3).rearrange(formula)
    with pytest.raises(ShapeError, match="does not fit the tensor"):
        Tensor.zeros(2, 3).rearrange("a b c -> a b c")
    with pytest.raises(ShapeError, match="sizes of the formula"):
        Tensor.zeros(2, 3).rearrange("a (b c) -> a b c")


def test_dtypes_of_places():
    assert TORCH and Tensor([1.0]).argsort().dtype is Tensor([1.0]).argmax().dtype


def test_truth_and_numbers_of_one_width_in_one_kernel_of_c():
    """Masks and int32 vectors are one C type; spreading a number must not spread a truth value."""
    for device in ("CPU", "CLANG"):
        if device in Device.get_available_devices():
            h = Tensor(np.arange(9, dtype="int32"), device=device).realize()
            assert h[1:].cat(Tensor.full((1,), 50, device=device)).tolist() == [*range(1, 9), 50]


def test_shares_in_a_list_are_checked_as_a_single_one_is():
    for shares in (1.5, [0.5, 1.5], (-0.1,)):
        with pytest.raises(InputError, match="quantile needs shares"):
            Tensor([1.0, 2.0]).quantile(shares)


def test_put_refuses_an_index_that_is_no_integer():
    with pytest.raises(DTypeError, match="put needs an index of integers"):
        Tensor([1.0, 2.0]).put(Tensor([0.7]), Tensor([5.0]))
