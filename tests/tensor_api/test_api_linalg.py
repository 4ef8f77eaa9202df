"""Linear algebra, checked against PyTorch: values, gradients, second gradients, stacks, odd shapes."""

from __future__ import annotations

import numpy as np
import pytest
from torch_reference import Tensor, check, seeded, torch

from glassgrad import DTypeError, GlobalCounters, InputError, ShapeError

L = torch.linalg


def matrices(*shape):
    """Matrices that are far from singular."""
    array = seeded(shape).normal(size=shape)
    return array + 2 * np.eye(shape[-2], shape[-1])


def checked(op, reference, *arrays, dtype="float64", factor=1e3):
    check(op, reference, values=list(arrays), dtype=dtype, factor=factor)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 4, 4), (2, 1, 3, 3)])
def test_solve_inv_det(shape):
    a = matrices(*shape)
    b = seeded(shape, 1).normal(size=(*shape[:-1], 2))
    checked(Tensor.solve, L.solve, a, b)
    checked(Tensor.solve, L.solve, a, b[..., 0])
    checked(Tensor.inv, L.inv, a)
    checked(Tensor.det, L.det, a)
    checked(lambda x: x.slogdet()[1], lambda x: L.slogdet(x)[1], a)
    np.testing.assert_array_equal(Tensor(a).slogdet()[0].numpy(), L.slogdet(torch.from_numpy(a))[0].numpy())


def test_solve_needs_pivots():
    a = np.array([[0.0, 1.0], [1.0, 0.0]])
    checked(Tensor.inv, L.inv, a)
    assert Tensor(a).det().item() == -1.0
    assert Tensor([[1.0, 2.0], [2.0, 4.0]]).det().item() == 0.0
    assert np.isnan(Tensor([[1.0, 2.0], [2.0, 4.0]]).inv().numpy()).all()
    assert np.isnan(Tensor([[-1.0, 0.0], [0.0, 1.0]]).logdet().item())


def test_solve_in_float32_and_half():
    a = matrices(20, 20)
    check(Tensor.inv, L.inv, values=[a], dtype="float32", factor=20)
    assert Tensor(a, dtype="float16").inv().dtype.name == "float16"


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (2, 3, 3)])
@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(shape, upper):
    a = matrices(*shape)
    a = a @ np.swapaxes(a, -1, -2)
    checked(lambda x: x.cholesky(upper), lambda x: L.cholesky(x, upper=upper), a)
    assert np.isnan(Tensor([[-1.0, 0.0], [0.0, 1.0]]).cholesky().numpy()).any()


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 2)])
def test_qr(shape):
    a = matrices(*shape)
    for part in (0, 1):
        checked(lambda x, p=part: x.qr("reduced")[p], lambda x, p=part: L.qr(x)[p], a)
    checked(lambda x: (lambda q, r: q @ r.sin())(*x.qr("reduced")), lambda x: (lambda q, r: q @ r.sin())(*L.qr(x)), a)
    q, r = Tensor(a).qr()
    theirs = L.qr(torch.from_numpy(a), mode="complete")
    np.testing.assert_allclose(q.numpy(), theirs[0].numpy(), atol=1e-12)
    np.testing.assert_allclose(r.numpy(), theirs[1].numpy(), atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 4)])
def test_svd(shape):
    a = matrices(*shape)
    k = min(shape[-2:])
    u, s, v = Tensor(a).svd(full_matrices=False)
    np.testing.assert_allclose((u * s.unsqueeze(-2) @ v).numpy(), a, atol=1e-11)
    np.testing.assert_allclose(
        (u.transpose(-2, -1) @ u).numpy(), np.broadcast_to(np.eye(k), (*shape[:-2], k, k)), atol=1e-11
    )
    checked(lambda x: x.svd(False)[1], lambda x: L.svd(x, full_matrices=False)[1], a)
    whole = [t.shape for t in Tensor(a).svd()]
    assert whole == [tuple(t.shape) for t in L.svd(torch.from_numpy(a))]
    u, _, v = Tensor(a).svd()
    for t in (u, v):
        n = t.shape[-1]
        np.testing.assert_allclose((t @ t.transpose(-2, -1)).numpy(), np.broadcast_to(np.eye(n), t.shape), atol=1e-11)


def test_svd_gradients_do_not_depend_on_signs():
    a = matrices(5, 3)
    checked(
        lambda x: (lambda u, s, v: (u * u) @ (s.unsqueeze(-2) * 1.5).transpose(-2, -1) + (u * u).sum())(
            *x.svd(False)
        ),
        lambda x: (lambda u, s, v: (u * u) @ (s.unsqueeze(-2) * 1.5).transpose(-2, -1) + (u * u).sum())(
            *L.svd(x, full_matrices=False)
        ),
        a,
    )
    checked(lambda x: (x.svd(False)[2] ** 2), lambda x: (L.svd(x, full_matrices=False)[2] ** 2), a)


def test_svd_of_low_rank():
    a = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 0.0])
    u, s, v = Tensor(a).svd()
    np.testing.assert_allclose(s.numpy(), np.linalg.svd(a)[1], atol=1e-12)
    np.testing.assert_allclose((u.transpose(0, 1) @ u).numpy(), np.eye(3), atol=1e-11)
    np.testing.assert_allclose((u * s @ v).numpy(), a, atol=1e-11)


def test_least_squares_of_a_vector_for_each_matrix():
    """As `solve` has it: a right side of the shape of all but the last axis is a vector for each matrix."""
    checked(Tensor.lstsq, lambda x, y: L.lstsq(x, y)[0], matrices(3, 3, 2), seeded("b").normal(size=(3, 3)))
    checked(Tensor.lstsq, lambda x, y: L.lstsq(x, y)[0], matrices(4, 3, 2), seeded("b").normal(size=(4, 3)))
    vector = seeded("b").normal(size=5)
    checked(Tensor.lstsq, lambda x, y: L.lstsq(x, y.unsqueeze(-1))[0].squeeze(-1), matrices(5, 3), vector)


def test_tensorsolve_moves_the_axes_of_the_tensor_itself():
    x, y = seeded("t").normal(size=(3, 6, 2, 1)), seeded("u").normal(size=6)
    for dims in ((0, 2), (2, 0), (-4, 2)):
        checked(lambda x, y, d=dims: x.tensorsolve(y, d), lambda x, y, d=dims: L.tensorsolve(x, y, d), x, y)


def test_a_vector_is_refused_by_the_method_that_was_called():
    for name in ("svd", "svdvals", "pinv", "cond", "matrix_rank"):
        with pytest.raises(ShapeError, match=f"^{name} needs a matrix"):
            getattr(Tensor([1.0, 2.0]), name)()
def test_pinv_and_rank_of_empty_matrices():
    for shape in ((0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 2, 3)):
        ours, theirs = Tensor.zeros(*shape), torch.zeros(*shape)
        assert ours.pinv().shape == tuple(L.pinv(theirs).shape) and ours.pinv().tolist() == L.pinv(theirs).tolist()
        for options in ({}, {"atol": 0.5}, {"rtol": 0.5}):
            assert ours.matrix_rank(**options).tolist() == L.matrix_rank(theirs, **options).tolist()


def test_pinv_lstsq_power_trace():
    a, b = matrices(5, 3), seeded("b").normal(size=(5, 2))
    checked(Tensor.pinv, L.pinv, a)
    checked(Tensor.lstsq, lambda x, y: L.lstsq(x, y)[0], a, b)
    checked(lambda x: x.matrix_power(3), lambda x: L.matrix_power(x, 3), matrices(3, 3))
    checked(lambda x: x.matrix_power(-2), lambda x: L.matrix_power(x, -2), matrices(3, 3))
    checked(lambda x: x.trace(), lambda x: x.trace(), matrices(3, 3))
    assert Tensor([[2, 0], [0, 2]]).matrix_power(0).tolist() == [[1, 0], [0, 1]]
    checked(lambda x: x.diagonal(1, 0, 2), lambda x: x.diagonal(1, 0, 2), seeded("d").normal(size=(3, 2, 4)))
    checked(lambda x: x.diagonal(-1), lambda x: x.diagonal(-1), seeded("d").normal(size=(3, 4)))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3), (0, 3, 3)])
def test_an_empty_matrix_has_the_condition_number_0(shape):
    """It read the first of no singular values: memory behind the tensor."""
    for order in (None, 2, -2, 1):
        found, wanted = Tensor.zeros(*shape).cond(order), torch.linalg.cond(torch.zeros(shape), order)
        assert found.shape == tuple(wanted.shape) and found.tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "op,reference",
    [
        (Tensor.inv, L.inv),
        (Tensor.det, L.det),
        (lambda x: x.qr("reduced")[1], lambda x: L.qr(x)[1]),
        (lambda x: x.svd(False)[1], lambda x: L.svd(x)[1]),
        (lambda x: (x @ x.transpose(0, 1)).cholesky(), lambda x: L.cholesky(x @ x.T)),
    ],
)
def test_second_gradients(op, reference):
    a = matrices(3, 3)
    x, y = Tensor(a), torch.from_numpy(a).requires_grad_()
    weight = seeded("w").normal(size=op(Tensor(a)).shape)
    first = (op(x) * Tensor(weight)).sum().gradient(x)[0]
    theirs, = torch.autograd.grad((reference(y) * torch.from_numpy(np.array(weight))).sum(), y, create_graph=True)
    np.testing.assert_allclose(first.numpy(), theirs.detach().numpy(), rtol=1e-8, atol=1e-8)
    second, = torch.autograd.grad((theirs ** 2).sum(), y)
    np.testing.assert_allclose((first ** 2).sum().gradient(x)[0].numpy(), second.numpy(), rtol=1e-7, atol=1e-7)


def test_works_inside_a_jit():
    from glassgrad.jit import TinyJit

    @TinyJit
    def inverse(x):
        return x.inv().realize()

    for seed in range(4):
        a = matrices(3, 3) + seed
        np.testing.assert_allclose(inverse(Tensor(a).realize()).numpy(), np.linalg.inv(a), rtol=1e-9)


def test_newton_schulz():
    a = matrices(4, 3)
    near = Tensor(a).newton_schulz(30, (1.5, -0.5)).numpy()
    np.testing.assert_allclose(near.T @ near, np.eye(3), atol=1e-6)


def test_says_what_is_wrong():
    with pytest.raises(ShapeError, match="inv needs a square matrix"):
        Tensor.zeros(2, 3).inv()
    with pytest.raises(DTypeError, match="det needs floats"):
        Tensor([[1, 2], [3, 4]]).det()
    with pytest.raises(ShapeError, match="right side does not fit"):
        Tensor.eye(3).solve(Tensor.zeros(2))
    with pytest.raises(InputError, match="no such qr"):
        Tensor.eye(3).qr("thin")


@pytest.mark.parametrize("params", [(2.0,), (1.5, -0.5), (2.0, -1.5, 0.5)])
@pytest.mark.parametrize("shape", [(2, 4, 3), (3, 5)])
def test_newton_schulz_is_its_formula(params, shape):
    a = matrices(*shape)
    x = a / (np.sqrt((a * a).sum((-2, -1), keepdims=True)) + 1e-7)
    for _ in range(2):
        x = sum(p * np.linalg.matrix_power(x @ x.swapaxes(-1, -2), k) @ x for k, p in enumerate(params))
    np.testing.assert_allclose(Tensor(a).newton_schulz(2, params).numpy(), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype, error", [("float32", 2e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("n", [63, 65, 130, 200])
def test_large_matrices_are_factored_in_blocks(n, dtype, error):
    rng = np.random.default_rng(n)
    a = (rng.standard_normal((2, n, n)) / np.sqrt(n)).astype(dtype)
    positive = a @ a.transpose(0, 2, 1) + np.eye(n, dtype=dtype)
    lower = Tensor(positive).cholesky().numpy()
    assert np.array_equal(lower, np.tril(lower))
    assert np.abs(lower @ lower.transpose(0, 2, 1) - positive).max() < 4 * error
    well = a + 3 * np.eye(n, dtype=dtype)[rng.permutation(n)]              # needs pivots
    exact = np.linalg.inv(well.astype("float64"))
    assert np.abs(Tensor(well).inv().numpy() - exact).max() < 4 * error
    right = rng.standard_normal((2, n, 3)).astype(dtype)
    assert np.abs(Tensor(well).solve(Tensor(right)).numpy() - exact @ right).max() < 10 * error
    sign, log = (part.numpy() for part in Tensor(well).slogdet())
    assert np.array_equal(sign, np.linalg.slogdet(well)[0])
    assert np.abs(log - np.linalg.slogdet(well.astype("float64"))[1]).max() < 100 * error


@pytest.mark.parametrize("dtype, error", [("float32", 2e-6), ("float64", 2e-14)])
def test_rotations_do_not_make_columns_longer(dtype, error):
    a = np.random.default_rng(0).standard_normal((90, 70)).astype(dtype)
    u, s, v = (part.numpy() for part in Tensor(a).svd(full_matrices=False))
    exact = np.linalg.svd(a.astype("float64"))[1]
    assert np.abs(s - exact).max() < error * exact[0] / 4
    assert np.abs(u.T @ u - np.eye(70)).max() < error and np.abs(v @ v.T - np.eye(70)).max() < error
    both = (a.T @ a).astype(dtype)
    values, vectors = (part.numpy() for part in Tensor(both).eigh())
    assert np.abs(vectors.T @ vectors - np.eye(70)).max() < error
    assert np.abs(values - np.linalg.eigvalsh(both.astype("float64"))).max() < error * values[-1]


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_eigenvectors_of_a_matrix_of_rank_one(shift):
    v = np.random.default_rng(0).standard_normal((1, 9)).astype("float32")
    a = shift * v.T @ v
    values, vectors = (part.numpy() for part in Tensor(a).eigh())
    assert np.abs(vectors.T @ vectors - np.eye(9)).max() < 1e-5
    assert np.abs(vectors * values @ vectors.T - a).max() < 1e-5


def test_a_step_launches_nothing():
    a = Tensor(matrices(4, 24, 24).astype("float32")).realize()
    for method, most in (("inv", 8), ("det", 8), ("qr", 4), ("cholesky", 3), ("svd", 20), ("eigh", 20)):
        before = GlobalCounters.kernel_count
        found = getattr(a, method)()
        Tensor.realize(*found) if isinstance(found, tuple) else found.realize()
        assert 0 < GlobalCounters.kernel_count - before <= most, method


def test_no_matrices_and_no_numbers():
    for shape in ((0, 3, 3), (2, 0, 0)):
        x = Tensor.zeros(*shape)
        assert x.inv().shape == x.cholesky().shape == shape
        assert x.det().shape == shape[:1] and x.svd()[1].shape == shape[:2] and x.eigh()[0].shape == shape[:2]
    for bad in (np.nan, np.inf):
        x = matrices(5, 5).astype("float32")
        x[2, 3] = x[3, 2] = bad
        for found in (Tensor(x).svd()[1], Tensor(x).eigh()[0], Tensor(x).qr()[1], Tensor(x).cholesky()):
            assert np.isnan(found.numpy()).any()
    x[2, 3] = np.nan
    assert np.isnan(Tensor(x).inv().numpy()).all() and np.isnan(Tensor(x).det().numpy())


@pytest.mark.parametrize("dtype, size",
                         [("float32", 1e25), ("float32", 1e-25), ("float64", 1e200), ("float64", 1e-200)])
def test_factors_of_numbers_whose_squares_are_no_floats(dtype, size):
    a = (matrices(2, 7, 7) * size).astype(dtype)
    a += a.swapaxes(-1, -2)
    limit = 100 * np.finfo(dtype).eps * np.abs(a).max()
    q, r = (x.numpy() for x in Tensor(a).qr())
    assert np.abs(q @ r - a).max() < limit
    u, s, v = (x.numpy() for x in Tensor(a).svd())
    assert np.abs((u * s[:, None]) @ v - a).max() < limit
    values, vectors = (x.numpy() for x in Tensor(a).eigh())
    assert np.abs((vectors * values[:, None]) @ vectors.swapaxes(-1, -2) - a).max() < limit
