"""A view shares its tensor's storage: a write through any of them is seen by all of them, as in PyTorch."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest

from glassgrad import DTypeError, InputError, Tensor, TinyJit, dtypes, no_grad
from glassgrad.engine.buffer import live_buffers
from glassgrad.tensor.methods.shape import indexing

torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")

START = np.arange(24, dtype="float32").reshape(2, 3, 4)

VIEWS = {
    "a slice": lambda x: x[1:], "a number": lambda x: x[1], "steps": lambda x: x[:, ::2],
    "inner": lambda x: x[0, 1:, :2],
    "an element": lambda x: x[1, 2, 3], "ellipsis": lambda x: x[..., 1], "None": lambda x: x[:, None, 1],
    "reshape": lambda x: x.reshape(4, 6), "view": lambda x: x.view(-1), "flatten": lambda x: x.flatten(1),
    "unsqueeze": lambda x: x.unsqueeze(1), "squeeze": lambda x: x[:1].squeeze(0),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2), "T of a matrix": lambda x: x[0].T, "mT": lambda x: x.mT,
    "mH": lambda x: x.mH, "H of a matrix": lambda x: x[0].H, "adjoint": lambda x: x.adjoint(),
    "movedim": lambda x: x.movedim(0, 2), "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "an upper diagonal": lambda x: x.diagonal(1, 1, 2), "narrow": lambda x: x.narrow(2, 1, 2),
    "select": lambda x: x.select(1, 2), "split": lambda x: x.split(2, 2)[1], "chunk": lambda x: x.chunk(2, 2)[0],
    "unbind": lambda x: x.unbind(1)[2], "detach": lambda x: x.detach(), "data": lambda x: x.data,
    "windows that lie apart": lambda x: x.unfold(2, 2, 2), "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "a view of a view": lambda x: x.permute(1, 0, 2)[1:].mT[1, ::2], "detached and sliced": lambda x: x.detach()[0],
    "swapaxes": lambda x: x.swapaxes(0, 1), "ravel": lambda x: x.ravel(), "view_as": lambda x: x.view_as(x.view(6, 4)),
    "expand": lambda x: x[:, :1].expand(2, 3, 4), "expanded, one of each": lambda x: x[:, :1].expand(2, 3, 4)[:, 1],
    "windows that overlap": lambda x: x.unfold(2, 2, 1),
}
REPEATING = {"expand", "windows that overlap"}
WRITES = {
    "fill_": lambda v: v.fill_(7), "+=": lambda v: v.__iadd__(1), "mul_": lambda v: v.mul_(3),
    "zero_": lambda v: v.zero_(),
    "whole": lambda v: v.__setitem__(Ellipsis, 5), "first": lambda v: v.__setitem__((0,) * v.ndim, 9),
    "copy_": lambda v: v.copy_(v * 2 + 1),
}


def both() -> tuple[Tensor, torch.Tensor]:
    return Tensor(START.copy()), torch.tensor(START)


def same(mine: Tensor, theirs: torch.Tensor) -> None:
    np.testing.assert_array_equal(mine.numpy(), theirs.detach().numpy())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", sorted(VIEWS.keys() - REPEATING))
def test_a_write_through_a_view_is_seen_by_its_tensor(name, write):
    x, y = both()
    others = [(f(x), f(y)) for f in (VIEWS["permute"], VIEWS["inner"], VIEWS["view"])]
    computed = x * 2
    WRITES[write](VIEWS[name](x))
    WRITES[write](VIEWS[name](y))
    same(x, y)
    for mine, theirs in others:
        same(mine, theirs)
    np.testing.assert_array_equal(computed.numpy(), START * 2)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", VIEWS)
def test_a_write_to_the_tensor_is_seen_by_views_made_before(name, write):
    x, y = both()
    mine, theirs = VIEWS[name](x), VIEWS[name](y)
    computed, then = mine + 1, theirs + 1
    WRITES[write](x)
    WRITES[write](y)
    same(mine, theirs)
    same(computed, then)


@pytest.mark.parametrize("name", sorted(REPEATING))
def test_a_view_that_repeats_elements_cannot_be_written(name):
    x, _ = both()
    view = VIEWS[name](x)
    with pytest.raises(InputError) as refused:
        view.fill_(1)
    made = "SHRINK, EXPAND" if name == "expand" else "WINDOW"
    assert str(refused.value).split("\n  at:")[0] == f"""\
this view cannot be written: several of its elements are one element of its tensor
  given:    a view of shape {view.shape}, made by {made}
  expected: a view that shows each element once
  fix:      write to the tensor itself, or to a copy: view = view.clone()"""
    assert "test_views.py" in str(refused.value)
    np.testing.assert_array_equal(x.numpy(), START)


@pytest.mark.parametrize("write", sorted(WRITES.keys() - {"first"}))
@pytest.mark.parametrize("name", ["steps, then none", "expanded", "of windows", "of nothing"])
def test_a_view_without_elements_may_be_written(name, write):
    views = {"steps, then none": lambda x: x[::2][1:], "expanded": lambda x: x[:0].expand(0, 3, 4),
             "of windows": lambda x: x[:0].unfold(2, 2, 1), "of nothing": lambda x: x[:, :0].transpose(0, 1)}
    x, y = both()
    WRITES[write](views[name](x))
    WRITES[write](views[name](y))
    same(x, y)


COPIES = {"clone": lambda x: x.clone(), "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1, 0),
          "repeat": lambda x: x.repeat(1, 1, 1), "an index": lambda x: x[[0, 1]], "computed": lambda x: x + 0,
          "a cast": lambda x: x.double(), "a new tensor": lambda x: type(x)(x) if isinstance(x, Tensor) else x.clone(),
          "where": lambda x: x.where(x > 0, x) if isinstance(x, torch.Tensor) else (x > 0).where(x, x)}


@pytest.mark.parametrize("name", COPIES)
def test_a_value_of_its_own_is_no_view(name):
    x, y = both()
    mine, theirs = COPIES[name](x), COPIES[name](y)
    mine.fill_(7)
    same(x, y)
    mine, theirs = COPIES[name](x), COPIES[name](y)
    x += 1
    y += 1
    same(mine, theirs)


def test_random_programs_of_views_and_writes_match_pytorch():
    random = np.random.default_rng()
    for _ in range(40):
        x, y = both()
        kept = [(x, y)]
        for _ in range(8):
            mine, theirs = kept[random.integers(len(kept))]
            chosen = random.integers(7)
            if chosen == 0 and theirs.ndim:
                i = int(random.integers(theirs.shape[0]))
                kept.append((mine[i], theirs[i]))
            elif chosen == 1 and theirs.ndim > 1:
                order = [int(a) for a in random.permutation(theirs.ndim)]
                kept.append((mine.permute(order), theirs.permute(order)))
            elif chosen == 2 and theirs.ndim:
                kept.append((mine[..., ::2], theirs[..., ::2]))
            elif chosen == 3 and theirs.is_contiguous():
                kept.append((mine.view(-1), theirs.view(-1)))
            elif chosen == 4:
                kept.append((mine + 1, theirs + 1))
            elif chosen == 5:
                mine += 2
                theirs += 2
            else:
                mine.realize()
                mine.mul_(3)
                theirs.mul_(3)
        for mine, theirs in kept:
            same(mine, theirs)


def test_a_reshape_is_a_view_where_pytorch_would_copy():
    """Strides do not limit what a view can show here, so `reshape` is always one."""
    x = Tensor(START.copy())
    x.permute(2, 0, 1).reshape(4, 6)[0] = 7
    assert (x.numpy()[:, :, 0] == 7).all()


# -- state and time ------------------------------------------------------------------------------------------
def test_views_made_before_and_after_writes_and_realizing():
    x, y = both()
    first, then = x[0], y[0]
    x.realize()
    x[0, 1] = 50
    y[0, 1] = 50
    same(first, then)
    second, after = first[1], then[1]
    first.realize()
    second += 1
    after += 1
    x.realize()
    for mine, theirs in ((x, y), (first, then), (second, after)):
        same(mine, theirs)


def test_views_of_a_tensor_that_is_gone_still_share():
    x = Tensor(START.copy()) * 1
    a, b = x[0], x[:, 1]
    del x
    a.realize()
    a.fill_(7)
    assert b.tolist() == [[7.0] * 4, [16.0, 17.0, 18.0, 19.0]]
    b.realize()
    a.realize()
    b.fill_(8)
    assert a[1].tolist() == [8.0] * 4 and a[0].tolist() == [7.0] * 4


def test_a_view_that_is_realized_alone_lets_the_whole_go():
    gc.collect()
    before = len(live_buffers())
    row = (Tensor(START.copy()).realize() * 2)[1].realize()
    gc.collect()
    assert len(live_buffers()) == before + 1 and row.uop.base.arg.nbytes == 48


def test_a_row_of_a_cache_with_a_view_is_written_in_place():
    cache = Tensor(np.zeros((200, 128), "float32")).realize()
    row, place = cache[3], cache.uop.arg.address
    for i in range(4):
        cache[i] = float(i + 1)
        cache.realize()
        assert cache.uop.arg.address == place
    assert row.numpy()[0] == 4.0


@pytest.mark.parametrize("key", [Ellipsis, slice(None), 1, (slice(None), slice(1, 3))])
def test_a_part_of_a_reshaped_tensor_is_written_without_a_scatter(key):
    """A reshape is no other order of elements: the part is chosen by a WHERE, and the whole is the new value."""
    x = Tensor(START.copy()).reshape(6, 4)
    x[key] = 5.0
    assert "SCATTER" not in {node.op.name for node in x.uop.toposort()}
    expected = START.reshape(6, 4).copy()
    expected[key] = 5.0
    np.testing.assert_array_equal(x.numpy(), expected)


def test_a_mask_of_an_assignment_is_computed_once(monkeypatch):
    x, calls = Tensor(START.copy()), []
    monkeypatch.setattr(indexing, "true_indices_by_axis",
                        lambda *args, find=indexing.true_indices_by_axis: calls.append(args) or find(*args))
    x[x > 5] = Tensor(np.arange(18, dtype="float32"))
    assert len(calls) == 1
    np.testing.assert_array_equal(x.numpy().ravel(), [*range(6), *range(18)])


def test_replace_and_data_give_the_name_another_storage():
    x = Tensor([1.0, 2.0])
    view = x[:1]
    x.replace(Tensor([5.0, 6.0]))
    assert view.tolist() == [1.0] and x.tolist() == [5.0, 6.0]
    view = x[:1]
    x.data = Tensor([7.0, 8.0])
    view.fill_(0)
    assert view.tolist() == [0.0] and x.tolist() == [7.0, 8.0]


def test_integers_with_views_do_not_become_floats_in_place():
    x = Tensor([1, 2, 3])
    view = x[:2]
    with pytest.raises(DTypeError) as refused:
        x /= 2
    assert str(refused.value).split("\n  at:")[0] == """\
an operation in place keeps the type of a tensor that has views
  given:    int32 would become float32
  expected: values of int32
  fix:      write x = x + y, which makes a new tensor"""
    del view
    x /= 2
    assert x.tolist() == [0.5, 1.0, 1.5]


@pytest.mark.parametrize("name", ["squeeze_", "squeeze_ 0", "unsqueeze_ 1", "transpose_ 0 1", "swapaxes_ 1 2"])
def test_a_method_that_changes_the_shape_in_place_keeps_the_storage(name):
    method, *axes = name.split()

    def program(x):
        row, bits = x[:, 1], x.view(-1)
        getattr(x, method)(*map(int, axes))
        row += 100
        x[0] *= 2
        bits[:5] = -1
        x += 1
        return x, row, bits

    for whole in (True, False):
        for mine, theirs in zip(*(program(x if whole else x[1:]) for x in both())):
            same(mine, theirs)


@pytest.mark.parametrize("other", ["uint8", "int32", "int64"])
@pytest.mark.parametrize("own", ["int8", "uint8", "int16", "int32", "float16"])
def test_an_operation_in_place_keeps_the_width_of_numbers(own, other):
    for keep in (False, True):
        x, y = (make(np.array([1, 2, 250]).astype(own)) for make in (Tensor, torch.tensor))
        views = (x[1:], y[1:]) if keep else (x, y)
        added = np.array([3, 4, 9], other)
        x += Tensor(added)
        y += torch.tensor(added)
        assert x.dtype.name == own
        same(x, y)
        same(*views)


# -- gradients -----------------------------------------------------------------------------------------------
def test_gradients_pass_through_writes_to_views():
    def program(make):
        a, b = make([1.0, 2.0, 3.0, 4.0]), make([5.0, 6.0])
        x = a * 2
        view = x.view(2, 2)
        view[0] = b * b
        view.T[1] *= 3
        (x * x).sum().backward()
        return x, a, b

    mine = program(lambda v: Tensor(v, requires_grad=True))
    theirs = program(lambda v: torch.tensor(v, requires_grad=True))
    same(mine[0], theirs[0])
    for a, b in zip(mine[1:], theirs[1:]):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy())


@pytest.mark.parametrize("key", [..., slice(None)])
def test_a_computed_tensor_that_is_written_as_a_whole_is_a_leaf_as_after_assign(key):
    x, w = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0], requires_grad=True)
    y, z = x * 2, x * 2
    y[key] = 1
    y.sum().backward()                           # PyTorch: x.grad is 0; here y does not depend on x any more
    assert y.tolist() == [1.0, 1.0] and y.grad.tolist() == [1.0, 1.0] and x.grad is None
    z[key] = w * w
    z.sum().backward()
    assert w.grad.tolist() == [6.0, 8.0] and z.grad.tolist() == [1.0, 1.0] and x.grad is None


def test_writes_through_detached_views_change_a_parameter_without_a_gradient():
    def program(make):
        w = make([1.0, 2.0])
        w.detach().mul_(5)
        w.data.add_(1)
        w.data[0] = 3
        with (no_grad() if isinstance(w, Tensor) else torch.no_grad()):
            w[1:].sub_(1)
        (w * w).sum().backward()
        return w

    mine = program(lambda v: Tensor(v, requires_grad=True))
    theirs = program(lambda v: torch.tensor(v, requires_grad=True))
    same(mine, theirs)
    same(mine.grad, theirs.grad)


# -- other libraries -----------------------------------------------------------------------------------------
def test_numpy_is_a_copy():
    x = Tensor([1.0, 2.0]).realize()
    y = x * 2
    array = x.numpy()
    array[0] = 7
    assert y.tolist() == [2.0, 4.0] and x.tolist() == [1.0, 2.0]


@pytest.mark.only_on("CPU", "CLANG", "PYTHON", reason="it reads the host's memory")
def test_what_numpy_is_shown_cannot_be_written():
    x = Tensor([1.0, 2.0]).realize()
    array = np.asarray(x)
    with pytest.raises(ValueError):
        array[0] = 7
    x += 1
    x.realize()
    assert array.tolist() == [1.0, 2.0] and x.tolist() == [2.0, 3.0]


# -- bits read as another type ----------------------------------------------------------------------------------
BITS = {
    "int32": lambda x, d: x.view(d.int32), "bytes": lambda x, d: x.view(d.uint8), "wider": lambda x, d: x.view(d.int64),
    "halves": lambda x, d: x.view(d.float16), "of a part": lambda x, d: x[1:].view(d.int16),
    "a part": lambda x, d: x.view(d.int32)[:, 1:, ::2], "read twice": lambda x, d: x.view(d.int64).view(d.int8)[0],
    "transposed": lambda x, d: x.view(d.int32).transpose(0, 2), "its own type": lambda x, d: x.view(d.float32),
}


@pytest.mark.parametrize("realized", [False, True], ids=["lazy", "realized"])
@pytest.mark.parametrize("name", BITS)
def test_bits_read_as_another_type_are_a_view(name, realized):
    x, y = both()
    if realized:
        x.realize()
    views = [(BITS[n](x, dtypes), BITS[n](y, torch)) for n in {name, "bytes", "halves"}]
    computed, before = x * 2, y * 2
    for mine, theirs in ((BITS[name](x, dtypes), BITS[name](y, torch)), (x[0], y[0])):
        mine[..., 0] = 3
        theirs[..., 0] = 3
        same(x, y)
        for seen, expected in views:
            same(seen, expected)
        if realized:
            views[0][0].realize()
    same(computed, before)


def test_a_view_of_bits_outlives_its_tensor():
    x, y = both()
    bits, expected = x.view(dtypes.int32), y.view(torch.int32)
    part = bits[1]
    del x
    gc.collect()
    part += 1
    expected[1] += 1
    same(bits, expected)


def test_a_jitted_step_is_seen_through_bits():
    w = Tensor([1.0, 2.0]).realize()
    bits = w.view(dtypes.int32)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.view(dtypes.int32)[1] = 0
        w.assign(w + x)
        return w.sum().realize()

    for i in range(5):
        step(Tensor([1.0, 3.0]).realize())
        assert w.tolist() == [2.0 + i, 3.0] == bits.view(dtypes.float32).tolist()


# -- the jit -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("keep", [False, True], ids=["no view outside", "a view outside"])
@pytest.mark.parametrize("name", ["a slice", "T of a matrix", "diagonal", "view", "data", "a view of a view"])
def test_a_jitted_function_that_writes_through_a_view_of_a_state(name, keep):
    x, y = both()
    x.realize()
    seen = [(VIEWS["inner"](x), VIEWS["inner"](y))] if keep else []

    @TinyJit
    def step(value: Tensor) -> Tensor:
        view = VIEWS[name](x)
        view += value
        return (x * 2).sum().realize()

    for i in range(6):
        total = step(Tensor([float(i)]).realize())
        view = VIEWS[name](y)
        view += float(i)
        assert total.item() == (y * 2).sum().item()
        same(x, y)
        for mine, theirs in seen:
            same(mine, theirs)
    x[0] = 1
    y[0] = 1
    for mine, theirs in [(x, y), *seen]:
        same(mine, theirs)


def test_a_jitted_function_that_writes_to_a_view_it_holds():
    x = Tensor([0.0, 0.0, 0.0, 0.0]).realize()
    part = x[1:3]

    @TinyJit
    def step(value: Tensor) -> Tensor:
        part.assign(value)
        return (part * 1).realize()

    for i in range(5):
        step(Tensor([float(i), 2.0]).realize())
        assert x.tolist() == [0.0, float(i), 2.0, 0.0] and part.tolist() == [float(i), 2.0]


def test_views_that_were_computed_before_their_tensor_was_gone_still_share_writes():
    x, y = Tensor([1.0, 2.0, 3.0, 4.0]).realize(), torch.tensor([1.0, 2.0, 3.0, 4.0])
    mine = [x.detach().realize(), x[1:].detach().realize(), x.reshape(2, 2).T.detach().realize()]
    theirs = [y.detach(), y[1:].detach(), y.reshape(2, 2).T.detach()]
    del x
    for views in (mine, theirs):
        views[1] *= 10
        views[2][0] = 7
    for one, other in zip(mine, theirs):
        same(one, other)


@pytest.mark.parametrize("repeating", [lambda t: t[:2].reshape(2, 1).expand(2, 3), lambda t: t[:3].unfold(0, 2, 1)],
                         ids=["expand", "unfold"])
def test_a_live_view_that_repeats_elements_does_not_hinder_a_write_to_another_view(repeating):
    x, y = Tensor([1.0, 2.0, 3.0, 4.0]) + 1, torch.tensor([2.0, 3.0, 4.0, 5.0])
    mine, theirs = [x[1:3].realize(), repeating(x).realize()], [y[1:3], repeating(y)]
    del x
    for views in (mine, theirs):
        views[0] *= 10
    for one, other in zip(mine, theirs):
        same(one, other)
    with pytest.raises(InputError, match="several of its elements are one element"):
        mine[1].assign(mine[1] + 1)


def test_a_weight_that_is_written_through_a_view_gets_its_gradient_once() -> None:
    w, u = Tensor([[1.0, 2.0]], requires_grad=True), Tensor([[5.0, 6.0]])
    h = w.T
    u.replace(w)
    w.realize()                      # two tensors had one node: it moves to another
    h.assign(h + 1)
    (w * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [[4.0, 6.0]]


def test_a_shallow_copy_and_the_axes_of_a_grid_are_views() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([3.0])
    twin, (rows, columns) = copy.copy(x), x.meshgrid(y)
    twin += 1
    assert x.tolist() == [2.0, 3.0] and rows.tolist() == [[2.0], [3.0]]
    y.fill_(7)
    assert columns.tolist() == [[7.0], [7.0]]
    deep = copy.deepcopy(x)
    deep += 1
    assert x.tolist() == [2.0, 3.0]


def test_another_thread_may_settle_an_assigned_tensor_first(monkeypatch: pytest.MonkeyPatch) -> None:
    from glassgrad.tensor.autograd import gradient_leaves
    x = Tensor([1.0, 2.0])
    x += 1

    class TakenMeanwhile(dict):  # type: ignore[type-arg]
        def items(self) -> list[tuple[int, object]]:  # type: ignore[override]
            found = [(key, (lambda: None, 1)) for key in self]
            self.clear()                                          # as another thread does between two lines
            return found

    monkeypatch.setattr(gradient_leaves.registry, "assigned", TakenMeanwhile(gradient_leaves.registry.assigned))
    assert x.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("parts", [lambda t: [t, t[0]], lambda t: [t[0], t], lambda t: [t[0], t.T],
                                   lambda t: [t[1], t[0], t], lambda t: [t[0], t.detach()]],
                         ids=["owner first", "view first", "views", "three", "detached"])
def test_deep_copies_that_are_made_together_share_memory_where_their_originals_do(parts) -> None:
    x, y = Tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    held, mine, theirs = parts(x), *map(copy.deepcopy, (parts(x), parts(y)))
    for copies in (mine, theirs):
        copies[0][0] = 7
        copies[1][1] = 9
    for one, other in zip(mine, theirs):
        same(one, other)
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]] and len(held) == len(mine)


def test_deep_copies_of_views_whose_tensor_is_gone_share_memory() -> None:
    x = Tensor([1.0, 2.0, 3.0])
    views = [x[:2].realize(), x[1:].realize()]
    del x
    first, second = copy.deepcopy(views)
    second[0] = 7
    assert first.tolist() == [1.0, 7.0] and [v.tolist() for v in views] == [[1.0, 2.0], [2.0, 3.0]]


def test_the_deep_copy_of_a_view_passes_gradients_to_the_copy_of_its_tensor() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    row = x[0]
    twin, its_row = copy.deepcopy([x, row])
    (its_row * its_row).sum().backward()
    assert twin.requires_grad and twin.grad is not None and twin.grad.tolist() == [[2.0, 4.0], [0.0, 0.0]]
    assert x.grad is None and row.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("formula,shape", [("ij->ji", (2, 3)), ("ij->ij", (2, 3)), ("ii->i", (3, 3)),
                                           ("...i->i...", (2, 3, 2)), ("iji->ji", (2, 3, 2))])
def test_an_einsum_that_computes_nothing_is_a_view(formula: str, shape: tuple[int, ...]) -> None:
    x, y = Tensor.zeros(*shape), torch.zeros(*shape)
    Tensor.einsum(formula, x)[0] = 5
    torch.einsum(formula, y)[0] = 5
    same(x, y)
    assert Tensor.einsum(formula, Tensor.zeros(*shape, dtype="bool")).dtype.name == "bool"


def test_an_einsum_to_another_type_or_with_a_sum_is_a_value() -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]])
    Tensor.einsum("ij->ji", x, dtype="float64").fill_(0)
    Tensor.einsum("ij->i", x).fill_(0)
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0]]
