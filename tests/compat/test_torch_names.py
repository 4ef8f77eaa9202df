"""PyTorch's namespace: what `import glassgrad.torch as torch` answers, beside what PyTorch answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassgrad.torch as ours
from glassgrad import InputError, ShapeError, Tensor, nn
from glassgrad.torch import distributions
from glassgrad.torch.utils import data

theirs = pytest.importorskip("torch")

# `torch` is each of the two in turn; x is (2, 3) floats, n integers, s a symmetric matrix
EXPRESSIONS = """
torch.tensor([1, 2])
torch.tensor([1.5, 2])
torch.tensor([True])
torch.tensor([[1, 2], [3, 4]], dtype=torch.float64)
torch.tensor([torch.tensor(1.0), torch.tensor(2.0)])
torch.tensor(np.float64(0.5))
torch.tensor([[np.float64(1.0)], [2]])
torch.tensor([np.float16(1.0), 2])
torch.tensor([np.uint8(1), np.int32(2)])
torch.tensor([np.int8(1), 1.5])
torch.tensor((n.nbytes, x.nbytes))
torch.nn.functional.hardtanh(n - 3)
torch.nn.functional.threshold(n - 3, 0.2, -1.5)
torch.where(n > 2, -2 ** 63, 0.5)
torch.nn.functional.pad(n, (1, 0), value=-100.0)
torch.nn.functional.pad(n, (1, 0), value=2.5)
torch.nn.functional.pad(n > 2, (0, 1), value=2.0)
torch.as_tensor(x)
torch.zeros(2, 3)
torch.zeros((2, 3), dtype=torch.long)
torch.ones(size=(2,))
torch.full((2, 2), 7)
torch.full((2,), 0.5)
torch.zeros_like(n)
torch.ones_like(n, dtype=torch.float32)
torch.full_like(x, 3)
torch.arange(5)
torch.arange(1, 2, 0.25)
torch.linspace(0, 1, 5)
torch.logspace(0, 2, 3)
torch.eye(3)
torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
torch.tril_indices(3, 3)
torch.triu_indices(3, 4, offset=1)
torch.LongTensor([1, 2])
torch.FloatTensor([[1, 2]])
torch.FloatTensor(2, 0)
torch.Tensor([1, 2])
torch.Tensor([[True, False]])
torch.Tensor(np.arange(3))
torch.Tensor(np.ones(2))
torch.Tensor(torch.arange(3))
torch.Tensor(range(3))
torch.Tensor([])
torch.Tensor()
torch.Tensor(3, 2).shape == (3, 2)
torch.Tensor(1).zero_()
isinstance(torch.ones(1), torch.Tensor)
torch.from_dlpack(np.arange(3.0))
torch.from_dlpack(torch.ones(2)).requires_grad
torch.cat([x, x], 1)
torch.cat((x, x), dim=-1)
torch.cat([torch.tensor([]), x[0]])
torch.stack([x, x], dim=2)
torch.hstack([n, n])
torch.vstack([n, n])
torch.dstack([x, x])
torch.column_stack([n, n])
torch.row_stack((n, n))
torch.meshgrid([torch.arange(2), torch.arange(3)], indexing="ij")
torch.where(x > 0, x, torch.zeros_like(x))
torch.where(x > 0, 1.0, x)
torch.where(x > 0, x < 1, x > -5)
torch.where(x > 0)
x.where(x > 0, 0 * x)
x.where(x > 0, -1.0)
n.where(n > 1, -100)
(x > 0).where(x < 4, x > 5)
torch.max(x)
torch.max(x, 1)
torch.max(x, dim=0, keepdim=True)
torch.max(x, torch.zeros(3))
torch.min(x, 1)[0]
torch.min(x, 1).indices
x.max(dim=1).values
x.min(dim=0)[1]
x.sort(dim=1).indices
torch.sort(x, descending=True)
torch.topk(x, 2).values
torch.cummax(x, dim=1)
torch.median(x, dim=1)
torch.std(x)
torch.std(x, 0, False)
torch.var(x, dim=1, unbiased=False, keepdim=True)
torch.var(x, False)
torch.var_mean(x, dim=1)
torch.exp(input=x)
torch.sum(x, dim=1)
torch.clamp(x, min=0)
torch.relu(x)
torch.softmax(x, dim=1)
torch.einsum("ij,kj->ik", x, x)
torch.einsum("ij,kj->ik", [x, x])
torch.matmul(x, x.T)
torch.broadcast_tensors(torch.ones(2, 1), torch.ones(3))
torch.broadcast_shapes((2, 1), (3,))
torch.equal(x, x)
torch.allclose(x, x + 1)
torch.is_tensor(x)
torch.numel(x)
torch.is_floating_point(n)
torch.finfo(torch.float32).eps
torch.finfo(torch.float16).max
torch.finfo(torch.bfloat16).tiny
torch.iinfo(torch.int16).min
torch.result_type(x, n) == torch.float32
torch.linalg.norm(x)
torch.linalg.norm(x, ord=1)
torch.linalg.norm(x, dim=1)
torch.linalg.norm(x, 2, dim=(0, 1))
torch.linalg.matrix_norm(x, "nuc")
torch.linalg.matrix_norm(x, 2)
torch.linalg.vector_norm(x, 3)
torch.linalg.inv(s)
torch.linalg.solve(s, x.T)
torch.linalg.cholesky(s)
torch.linalg.svd(x, full_matrices=False).S
torch.linalg.matrix_rank(x)
[t.shape for t in torch.svd(x)], torch.svd(s)[2].abs()
[list(t.shape) for t in torch.qr(x.T)]
torch.linalg.multi_dot([x, x.T, x])
torch.linalg.slogdet(s).logabsdet
torch.linalg.solve_triangular(s, x.T, upper=False)
torch.linalg.solve_triangular(s, x, upper=True, left=False)
torch.linalg.cholesky(input=s), torch.linalg.inv(A=s), torch.linalg.matrix_norm(input=x, ord="nuc")
torch.linalg.solve(A=s, B=x.T), torch.linalg.solve_triangular(s, B=x.T, upper=False)
torch.linalg.cross(input=s, other=s), torch.linalg.vecdot(x=x, y=x), torch.linalg.vector_norm(x=x, ord=3)
torch.linalg.matmul(input=x, other=x.T), torch.linalg.eigvalsh(input=s), torch.linalg.svdvals(A=x)
torch.special.expit(x)
torch.nextafter(x, x.T.reshape(2, 3))
torch.autograd.grad((x.requires_grad_() ** 3).sum(), x)
torch.autograd.functional.jacobian(lambda t: t ** 2, x[0])
torch.autograd.functional.hessian(lambda t: (t ** 3).sum(), x[0])
torch.autograd.functional.hessian(lambda t, u: (t ** 2 * u).sum(), (x[0], x[1]))
torch.autograd.functional.vjp(lambda t: t ** 2, x[0], torch.ones(3))
torch.autograd.functional.hvp(lambda t: (t ** 3).sum(), x[0], torch.ones(3))
torch.func.grad(lambda t: (t ** 2).sum())(x)
torch.func.vmap(lambda t: t.sum())(x)
torch.func.grad_and_value(lambda t: (t ** 2).sum())(x)
torch.distributions.Normal(x, 2.0).log_prob(torch.zeros(3))
torch.distributions.Normal(x, 2.0).entropy()
torch.distributions.Normal(0.5, 2.0).cdf(x)
torch.distributions.Normal(0.5, 2.0).icdf(torch.sigmoid(x))
torch.distributions.LogNormal(0.5, 2.0).log_prob(x.abs())
torch.distributions.LogNormal(0.5, 0.7).mean
torch.distributions.LogNormal(0.5, 0.7).variance
torch.distributions.LogNormal(0.5, 0.7).stddev
torch.distributions.LogNormal(0.5, 0.7).entropy()
torch.distributions.LogNormal(0.5, 0.7).cdf(x.abs())
torch.distributions.LogNormal(0.5, 0.7).icdf(torch.sigmoid(x))
torch.distributions.Laplace(0.5, 2.0).log_prob(x)
torch.distributions.Uniform(-8.0, 9.0).log_prob(x)
torch.distributions.Exponential(2.0).log_prob(x.abs())
torch.distributions.Bernoulli(logits=x).log_prob(torch.ones(2, 3))
torch.distributions.Bernoulli(0.25).entropy()
torch.distributions.Categorical(logits=x).log_prob(torch.tensor([0, 2]))
torch.distributions.Categorical(torch.tensor([0.5, 0.5, 0.0])).entropy()
torch.distributions.MultivariateNormal(x, covariance_matrix=s).log_prob(x + 1)
torch.distributions.MultivariateNormal(x[0], scale_tril=torch.linalg.cholesky(s)).entropy()
torch.distributions.Independent(torch.distributions.Normal(x, 1.0), 1).log_prob(torch.zeros(2, 3))
torch.distributions.kl_divergence(torch.distributions.Normal(x, 1.0), torch.distributions.Normal(0.0, 2.0))
torch.distributions.kl_divergence(*[torch.distributions.Categorical(logits=t) for t in (x, x * 2)])
torch.distributions.kl_divergence(*[torch.distributions.Bernoulli(logits=t) for t in (x, x * 2)])
[list(b[0].shape) for b in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, n[:2]), batch_size=1)]
[b for b in torch.utils.data.DataLoader([(1, 2.0), (3, 4.0), (5, 6.0)], batch_size=2)]
[len(b) for b in torch.utils.data.DataLoader(list(range(7)), batch_size=2, drop_last=True)]
len(torch.utils.data.DataLoader(list(range(7)), batch_size=2))
torch.utils.data.ConcatDataset([[1, 2], [3]])[-1]
torch.utils.data.default_collate([{"a": x, "b": 1}, {"a": x, "b": 2}])
[len(part) for part in torch.utils.data.random_split(range(10), [0.75, 0.25])]
torch.randint(2, 3, (4,))
torch.randint(1, (4,))
torch.multinomial(torch.tensor([0.0, 1.0]), 3, replacement=True)
torch.bernoulli(torch.ones(3))
torch.normal(2.0, 0.0, size=(3,))
torch.randperm(1)
torch.cuda.is_available()
torch.device("cpu").type
torch.compile(abs)(-1)
""".strip().splitlines()
# element types that PyTorch has wider: places and counts
NARROWER = {"int32"}


def parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [p for v in value.values() for p in parts(v)]
    return [p for v in value for p in parts(v)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_name_answers_as_in_pytorch(expression: str) -> None:
    names = {}
    for torch in (ours, theirs):
        names[torch] = {"torch": torch, "np": np, "x": torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]]),
                        "n": torch.tensor([3, 1, 2]),
                        "s": torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])}
    found, reference = (parts(eval(expression, names[torch])) for torch in (ours, theirs))
    assert len(found) == len(reference)
    for mine, other in zip(found, reference):
        if isinstance(other, theirs.Tensor):
            assert mine.shape == tuple(other.shape)
            assert mine.dtype.name in (str(other.dtype).removeprefix("torch."), *NARROWER)
            np.testing.assert_allclose(mine.detach().numpy(), other.detach().numpy(), rtol=2e-5, atol=2e-6)
        else:
            assert mine == pytest.approx(other) if isinstance(other, float) else mine == other


def test_gradients_go_to_one_of_equal_maxima_as_in_pytorch() -> None:
    for torch in (ours, theirs):
        x = torch.tensor([[2.0, 2.0, 1.0]], requires_grad=True)
        torch.max(x, 1).values.sum().backward()
        assert x.grad.tolist() == [[1.0, 0.0, 0.0]]


def test_data_is_a_tensor_that_writes_and_memory_that_is_read() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    w.data -= 0.5
    w.data[0] = 7
    w.data[1:].mul_(2)
    assert w.tolist() == [7, 3, 5] and w.requires_grad and w.data().tolist() == [7, 3, 5]
    _ = (w * w.data).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [7, 3, 5]
    w.grad.data.zero_()
    assert w.grad.tolist() == [0, 0, 0]
    w.data = Tensor([[1.0]])
    assert w.tolist() == [[1.0]] and w.requires_grad and type(w.data + 1) is Tensor


@pytest.mark.parametrize("change", ["row[2] = 5", "row += 5", "row.view(2, 2)[1] *= 3", "row[row > 0] = 2"])
def test_a_view_passes_on_what_is_written_to_it(change: str) -> None:
    results = []
    for torch in (ours, theirs):
        x = torch.ones(3, 4)
        exec(change, {"row": x[1]})
        results.append(x.tolist())
    assert results[0] == results[1]


@pytest.mark.parametrize("unbiased", [True, False])
def test_unbiased_is_a_correction(unbiased: bool) -> None:
    x = ours.tensor([1.0, 2.0, 4.0])
    reference = theirs.tensor([1.0, 2.0, 4.0])
    assert x.var(unbiased=unbiased).item() == pytest.approx(reference.var(unbiased=unbiased).item())
    assert x.std(0, unbiased=unbiased).item() == pytest.approx(reference.std(0, unbiased=unbiased).item())


def test_a_value_that_was_kept_comes_back() -> None:
    p = Tensor([1.0], requires_grad=True)
    kept, p.data = p.data, Tensor([5.0])
    assert p.tolist() == [5]
    p.data = kept
    assert p.tolist() == [1]


def test_tensors_and_layers_of_torch_mean_what_pytorch_means() -> None:
    numbers = [[1.0, 5.0], [7.0, 2.0]]
    x, drop = Tensor(numbers), nn.Sequential(nn.Dropout(1.0))
    assert x.max(1).tolist() == [5, 7] and drop(x).tolist() == x.tolist()
    x, drop = ours.tensor(numbers), ours.nn.Sequential(ours.nn.Dropout(1.0))
    values, indices = x.max(1)
    assert values.tolist() == [5, 7] and indices.tolist() == [1, 0] and x.min(0)[0].tolist() == [1, 2]
    assert (x * 2).max(0, True)[0].tolist() == [[14, 10]] and x.max().item() == 7 and x.max(x * 2)[0, 0].item() == 2
    assert drop(x).sum().item() == 0 and drop.eval()(x).tolist() == x.tolist()
    assert x.softmax(1).sum().item() == pytest.approx(2) and x.amax(1).tolist() == [5, 7]


def test_what_torch_makes_is_of_its_class_and_so_is_what_is_computed_from_it() -> None:
    x, net = ours.ones(2, 3), ours.nn.Sequential(ours.nn.Linear(3, 4), ours.nn.ReLU(), ours.nn.LazyLinear(2))
    for made in (x, x + Tensor([1.0]), Tensor([1.0]) + x, net(x), *net.parameters(), ours.rand(2), ours.cat([x, x]),
                 ours.where(x > 0, x, 0), ours.nn.GRU(3, 2)(x)[0], ours.nn.Parameter([1.0]), ours.stack([x, x])):
        assert isinstance(made, ours.Tensor), made
    assert isinstance(net[2], ours.nn.Linear) and isinstance(net, ours.nn.Module)
    assert isinstance(ours.nn.TransformerEncoderLayer(4, 2).linear1, ours.nn.Linear)
    assert type(nn.Linear(3, 4).weight) is Tensor


def test_the_short_name_is_the_same_module() -> None:
    import glassgrad.compat.torch as adapter
    import glassgrad.compat.torch.utils.data as batches
    import glassgrad.torch.nn
    assert ours is adapter and data is batches and data.DataLoader is batches.DataLoader
    assert glassgrad.torch.nn is adapter.nn is ours.nn and distributions is adapter.distributions


def test_a_buffer_that_is_not_persistent() -> None:
    for base, make in ((nn.Module, Tensor), (theirs.nn.Module, theirs.tensor)):
        model = base()
        model.register_buffer("kept", make([1.0]))
        model.register_buffer("passing", make([2.0]), persistent=False)
        assert list(model.state_dict()) == ["kept"] and [n for n, _ in model.named_buffers()] == ["kept", "passing"]


def test_in_place_keeps_shape_and_type() -> None:
    x = Tensor([1.0])
    with pytest.raises(ShapeError, match="an operation in place keeps the shape"):
        x += Tensor([1.0, 2.0])
    half = Tensor([1.0], dtype="float16")
    half += Tensor([1.0])
    assert half.dtype.name == "float16"


def test_what_a_call_left_behind_is_no_part_of_the_model() -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            self.linear, self.seen = nn.Linear(2, 2), None
            self.own = Tensor.ones(2) * 3
            self.buffer = Tensor([1.0], requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.linear(x).softmax(-1)  # type: ignore[assignment]
            self.buffer = self.buffer + 1
            return self.seen * self.own  # type: ignore[operator]
    model = Attends()
    before = list(model.state_dict())
    _ = model(Tensor.ones(1, 2))
    assert list(model.state_dict()) == before == ["linear.weight", "linear.bias", "own", "buffer"]
    assert len(list(model.parameters())) == 3 and list(nn.state.get_state_dict(model)) == before
    assert model.buffer.tolist() == [2.0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_backward_leaves_in_grad_has_a_history_only_where_that_is_asked_for(create_graph: bool) -> None:
    def gradients(torch: Any) -> list[Any]:
        w, v = torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([3.0, 0.5], requires_grad=True)
        (w ** 3).sum().backward(create_graph=create_graph)
        found = [w.grad.tolist()]
        first, w.grad = w.grad, None
        (first * v + w).sum().backward()                      # a penalty on the gradient, written by hand
        found += [w.grad.tolist(), v.grad.tolist()]
        torch.autograd.backward([(w * w).sum()], create_graph=create_graph)
        found.append(w.grad.tolist())                         # added to
        total, w.grad = w.grad, None
        (total * v).sum().backward()
        return found + [None if w.grad is None else w.grad.tolist(), v.grad.tolist()]

    assert gradients(ours) == gradients(theirs)


def test_blocks_with_and_without_gradients() -> None:
    x = Tensor([2.0], requires_grad=True)
    assert ours.is_grad_enabled()
    for block, cut in ((ours.inference_mode(), True), (ours.set_grad_enabled(False), True), (ours.no_grad(), True),
                       (ours.set_grad_enabled(True), False), (ours.enable_grad(), False)):
        with block:
            y = x * 3
            assert ours.is_grad_enabled() is not cut
        assert (y.requires_grad is False) is cut
    with ours.no_grad():
        for block in (ours.enable_grad(), ours.set_grad_enabled(True)):
            with block:
                y = x * 3
                with ours.no_grad():
                    assert not ours.is_grad_enabled()
                assert ours.is_grad_enabled()
            assert not ours.is_grad_enabled() and ours.autograd.grad(y, x)[0].tolist() == [3]
    first, second = ours.autograd.grad([x * 2, x * 3], [x, Tensor([1.0])], allow_unused=True)
    assert first.tolist() == [5] and second is None


def test_a_generator_starts_the_numbers_anew() -> None:
    a = ours.rand(3, generator=ours.Generator().manual_seed(7)).tolist()
    ours.manual_seed(7)
    assert ours.rand(3).tolist() == a
    order = [b.tolist() for b in data.DataLoader(list(range(6)), 2, shuffle=True,
                                                 generator=ours.Generator().manual_seed(1))]
    assert sorted(sum(order, [])) == list(range(6))
    drawn = list(data.WeightedRandomSampler([0.0, 1.0], 5))
    assert drawn == [1] * 5 and len(list(data.RandomSampler(range(9), num_samples=4))) == 4


@pytest.mark.parametrize("name", ["Normal", "LogNormal", "Laplace", "Uniform", "Exponential", "Bernoulli",
                                  "Categorical", "MultivariateNormal"])
def test_samples_have_the_mean_they_should(name: str) -> None:
    given: dict[str, tuple[Any, ...]] = {
        "Normal": (1.0, 2.0), "LogNormal": (0.0, 0.5), "Laplace": (1.0, 0.5), "Uniform": (1.0, 3.0),
        "Exponential": (2.0,), "Bernoulli": (0.25,), "Categorical": ([0.25, 0.75],),
        "MultivariateNormal": ([1.0, 2.0], [[1.0, 0.5], [0.5, 2.0]])}
    means = []
    for torch in (ours, theirs):
        arguments = [torch.tensor(a) if isinstance(a, list) else a for a in given[name]]
        torch.manual_seed(0)
        sample = getattr(torch.distributions, name)(*arguments).sample((20000,)).numpy()
        means.append([sample.mean(0), sample.std(0), np.asarray(sample.shape)])
    for mine, other in zip(*means):
        np.testing.assert_allclose(mine, other, atol=0.05)


MISTAKES = [
    (lambda: ours.randint(5), "randint needs a shape"),
    (lambda: distributions.Categorical(logits=Tensor([1.0])).rsample(), "cannot pass gradients through a sample"),
    (lambda: distributions.Distribution().log_prob(1), "has no log_prob"),
    (lambda: distributions.Categorical(), "chances are given once"),
    (lambda: distributions.kl_divergence(distributions.Normal(0.0, 1.0), distributions.Laplace(0.0, 1.0)),
     "no formula for these two"),
    (lambda: distributions.MultivariateNormal(Tensor([1.0])), "how the numbers vary together is given once"),
    (lambda: data.Dataset()[0], "this data set gives no examples"),
    (lambda: data.random_split([1, 2, 3], [1, 1]), "these parts do not make up the data"),
    (lambda: data.TensorDataset(Tensor([1]), Tensor([1, 2])), "these tensors do not hold the same examples"),
    (lambda: data.DataLoader([1], shuffle=True, sampler=[0]), "a sampler says the order already"),
    (lambda: ours.cat(3), "cat cannot take this tensors"),
    (lambda: ours.stack(()), "stack needs tensors"),
    (lambda: ours.where([], 1.0, 2.0), "where cannot take this condition"),
    (lambda: ours.zeros_like(3), "zeros_like cannot take this input"),
    (lambda: ours.linalg.qr(3), "qr cannot take this A"),
    (lambda: ours.linalg.inv("x"), "cannot make a tensor of this value"),
]


@pytest.mark.parametrize("call,message", MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_what_is_missing_below_torch_says_what_to_use(tmp_path: Path) -> None:
    """`import torch` alone, then `torch.cuda.get_device_name`: the message named our own module."""
    script = tmp_path / "missing.py"
    script.write_text('''
import torch
for name, said in (("cuda.get_device_name", "`glassgrad devices` names the GPU"), ("profiler", "VIZ=1"),
                   ("nn.DataParallel", "one device here"), ("nn.functional.foo", "docs/api.md"),
                   ("utils.data.foo", "docs/api.md"), ("optim.foo", "docs/api.md"), ("backends.foo", "docs/api.md"),
                   ("fft", "no complex numbers")):
    place = torch
    try:
        for part in name.split("."):
            place = getattr(place, part)
        raise AssertionError(name)
    except AttributeError as error:
        assert str(error).startswith(f"torch.{name} has no counterpart in glassgrad: ") and said in str(error), error
assert torch.nn.functional.relu(torch.tensor([-1.0])).item() == 0 and torch.nn.init.zeros_ and torch.cuda.amp.GradScaler
''')
    done = subprocess.run([sys.executable, "-m", "glassgrad.compat", "--torch", str(script)], capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("torch", [ours, theirs], ids=["glassgrad", "PyTorch"])
def test_a_computed_tensor_says_whether_it_leads_to_a_gradient(torch: Any) -> None:
    """`if loss.requires_grad: loss.backward()` trained nothing: computed tensors answered None."""
    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0])
    layer = torch.nn.Linear(2, 2)
    wanted = [w, w * 2, w[0], w.clone(), (x * w).sum(), layer(x), torch.relu(w)]
    assert all(t.requires_grad is True for t in wanted)
    others = [x, x * 2, w.detach(), w > 1, w.detach() * x, torch.Tensor([1.0]), torch.zeros(2)]
    with torch.no_grad():
        others += [w * 2]
        assert not torch.is_grad_enabled()
    assert all(t.requires_grad is False for t in others) and torch.is_grad_enabled()
    loss = (w * x).sum()
    loss.item()
    if loss.requires_grad:
        loss.backward()
    assert w.grad.tolist() == [3.0, 4.0] and x.requires_grad_().requires_grad is True
    x.requires_grad = False
    assert (x * 2).requires_grad is False


def test_what_writes_into_another_tensor_is_refused_where_a_tensor_is_made() -> None:
    x = ours.ones(3)
    with pytest.raises(InputError) as caught:
        ours.zeros(3, out=x)
    assert str(caught.value).split("  at:")[0] == """\
a new tensor cannot be made in another one's place
  given:    out=...
  expected: a call that returns the tensor
  fix:      write into it: x.copy_(torch.zeros(3))
"""
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_a_script_of_pytorch_runs_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text('''
import torch, torch.nn as nn, torch.nn.functional as F
from torch import optim
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    def forward(self, x): return self.layers(x)
x = torch.rand(64, 2)
y = (x[:, 0] > x[:, 1]).long()
net, losses = Net().to(device), []
optimizer = optim.Adam(net.parameters(), lr=0.05)
scheduler = StepLR(optimizer, 5)
for epoch in range(8):
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs.to(device)), labels.to(device))
        loss.backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
with torch.no_grad():
    _, predicted = torch.max(net(x).data, 1)
print("accuracy", (predicted == y).float().mean().item(), losses[-1] < losses[0], torch.__version__)
''')
    done = subprocess.run([sys.executable, "-m", "glassgrad.compat", "--torch", str(script)], capture_output=True,
                          text=True, cwd=Path(__file__).resolve().parents[2])
    assert done.returncode == 0, done.stderr
    word, accuracy, fell, version = done.stdout.split()
    assert float(accuracy) > 0.8 and fell == "True" and version.endswith("glassgrad")


def test_autocast_is_at_the_top() -> None:
    with ours.autocast("cpu", dtype=ours.bfloat16):
        assert (ours.ones(2, 2) @ ours.ones(2, 2)).dtype is ours.bfloat16


@pytest.mark.parametrize("text", [
    "torch.pow(2, x)", "torch.pow(2.5, h)", "torch.remainder(2, x)", "torch.xlogy(2, h)", "torch.xlogy(x, h)",
    "torch.copysign(x, h)", "torch.ldexp(x, h)", "torch.ldexp(h, x)", "torch.atan2(x, h)", "w.masked_fill(w > 0, 3.0)",
    "w.clone().masked_fill_(w > 0, 3.0)", "torch.zeros(1, dtype=torch.result_type(2, x))"])
def test_numbers_and_narrow_types_beside_others_have_the_types_of_pytorch(text: str) -> None:
    found, wanted = (eval(text, {"torch": library, "x": library.tensor([3, -1], dtype=library.int8),
                                 "h": library.tensor([0.5, 2.0], dtype=library.float16),
                                 "w": library.tensor([-937271695, 5], dtype=library.int32)})
                     for library in (ours, theirs))
    assert str(found.dtype).split(".")[-1] == str(wanted.dtype).split(".")[-1]
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-3 if found.dtype.kind == "f" else 0)
