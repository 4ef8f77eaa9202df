"""Views, joining and splitting against PyTorch and NumPy."""
# ruff: noqa: B023   (each lambda runs before its loop goes on)

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch, the reference of gradients, is not installed")
from hypothesis import given, settings as hypothesis_settings, strategies as st  # noqa: E402
from torch_reference import Tensor, check, seeded, torch  # noqa: E402

F = torch.nn.functional

SAME = {
    "reshape": lambda x: x.reshape(4, 6), "reshape -1": lambda x: x.reshape(-1, 2),
    "reshape ()": lambda x: x.reshape((2, 12)),
    "view": lambda x: x.view(24), "permute": lambda x: x.permute(2, 0, 1), "permute -": lambda x: x.permute(-1, 0, -2),
    "transpose": lambda x: x.transpose(0, 2), "mT": lambda x: x.mT, "flatten": lambda x: x.flatten(),
    "flatten 1": lambda x: x.flatten(1), "flatten 0 1": lambda x: x.flatten(0, 1),
    "unflatten": lambda x: x.unflatten(2, (2, -1)),
    "unsqueeze": lambda x: x.unsqueeze(1), "unsqueeze -1": lambda x: x.unsqueeze(-1), "flip": lambda x: x.flip(0, 2),
    "flip ()": lambda x: x.flip((1,)), "expand": lambda x: x.unsqueeze(0).expand(5, -1, -1, -1),
    "repeat": lambda x: x.repeat(2, 1, 3), "repeat more": lambda x: x.repeat(2, 1, 2, 1),
    "movedim": lambda x: x.movedim(0, 2), "movedim of two": lambda x: x.movedim((0, -1), (1, 0)),
    "diag above": lambda x: x.flatten()[:5].diag(2), "diag below": lambda x: x.flatten()[:5].diag(-1),
    "diag of a matrix": lambda x: x[:, 1].diag(1), "diag of a matrix, below": lambda x: x[0].diag(-1),
    "roll": lambda x: x.roll(2, 1), "roll flat": lambda x: x.roll(5), "roll 2": lambda x: x.roll((1, -1), (0, 2)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "repeat_interleave flat": lambda x: x.repeat_interleave(3),
    "unfold": lambda x: x.unfold(2, 3, 1), "unfold 2": lambda x: x.unfold(1, 2, 2), "triu": lambda x: x.triu(),
    "tril": lambda x: x.tril(), "triu 1": lambda x: x.triu(1), "tril -1": lambda x: x.tril(-1),
    "tril 9": lambda x: x.tril(9),
    "squeeze": lambda x: x.unsqueeze(0).unsqueeze(2).squeeze(), "squeeze 0": lambda x: x.unsqueeze(0).squeeze(0),
    "squeeze no-op": lambda x: x.squeeze(0), "broadcast_to": lambda x: x.broadcast_to((2, 2, 3, 4)),
}


@pytest.mark.parametrize("name", SAME)
def test_views_and_their_gradients_are_pytorchs(name):
    check(SAME[name], (2, 3, 4))
    check(SAME[name], (2, 3, 4), dtype="int32")


def test_views_of_scalars_and_nothing():
    check(lambda x: x.flatten(), ())
    check(lambda x: x.reshape(1, 1), ())
    check(lambda x: x.squeeze(), (1,))
    check(lambda x: x.squeeze(), ())
    check(lambda x: x.permute(1, 0), (0, 3))
    check(lambda x: x.reshape(3, 0), (0, 3))
    check(lambda x: x.unsqueeze(0), ())
    check(lambda x: x.expand(3), ())


def test_the_transpose_reverses_all_axes():
    check(lambda x: x.T, (3, 4))
    x = Tensor([1, 2])
    assert x.T is x and Tensor.zeros(2, 3, 4).T.shape == (3, 2, 4)


@pytest.mark.parametrize("padding", [(1, 2), (1, 2, 3, 4), (0, 0, 1, 0), (-1, 0), (-1, 2, 0, -1)])
def test_padding_with_a_number(padding):
    check(lambda x: x.pad(padding), lambda x: F.pad(x, padding), (3, 4))
    check(lambda x: x.pad(padding, value=2.5), lambda x: F.pad(x, padding, value=2.5), (3, 4))


def test_padding_by_pairs():
    check(lambda x: x.pad(((1, 0), None)), lambda x: F.pad(x, (0, 0, 1, 0)), (3, 4))
    check(lambda x: x.pad(((1, 0), (2, 3)), value=-1.0), lambda x: F.pad(x, (2, 3, 1, 0), value=-1.0), (3, 4))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding_from_inside(mode):
    check(lambda x: x.pad((2, 1), mode=mode), lambda x: F.pad(x, (2, 1), mode=mode), (2, 2, 5))
    check(lambda x: x.pad((2, 1, 1, 3), mode=mode), lambda x: F.pad(x, (2, 1, 1, 3), mode=mode), (2, 2, 5, 4))


def test_shrink_takes_none_for_a_whole_axis():
    check(lambda x: x.shrink(((1, 3), None)), lambda x: x[1:3], (4, 5))


def test_cat_and_stack_join_along_every_axis():
    for dim in (0, 1, -1):
        check(lambda x, y: Tensor.cat(x, y, dim=dim), lambda x, y: torch.cat([x, y], dim), (3, 3, 3), (3, 3, 3))
        check(lambda x, y: Tensor.stack(x, y, dim=dim), lambda x, y: torch.stack([x, y], dim), (3, 4), (3, 4))
    check(lambda x, y, z: x.cat(y, z), lambda x, y, z: torch.cat([x, y, z]), (2, 3), (0, 3), (5, 3))
    check(lambda x, y: Tensor.cat([x, y]), lambda x, y: torch.cat([x, y]), (2,), (3,), dtype=("int32", "float32"))
    check(lambda x, y: Tensor.stack([x, y]), lambda x, y: torch.stack([x, y]), (), ())


def test_joined_values_are_exact():
    x = np.array([-0.0, np.nan, np.inf], "float32")
    assert Tensor(x).cat(Tensor([0.0])).numpy().tobytes() == np.append(x, np.float32(0)).tobytes()


def test_split_chunk_and_unbind_give_pytorchs_parts():
    for sizes in (2, 3, 7, [3, 4], [0, 7]):
        for mine, theirs in zip(Tensor.arange(7).split(sizes), torch.arange(7).split(sizes)):
            assert mine.tolist() == theirs.tolist()
    for n in (1, 2, 3, 4, 7, 9):
        assert [t.tolist() for t in Tensor.arange(7).chunk(n)] == [t.tolist() for t in torch.arange(7).chunk(n)]
    assert [t.shape for t in Tensor.zeros(2, 5).split(2, 1)] == [(2, 2), (2, 2), (2, 1)]
    check(lambda x: x.unbind(1)[2], (3, 4))
    check(lambda x: x.split(2, 1)[1], (3, 5))


def test_diagonals_are_read_and_made_as_in_pytorch():
    check(lambda x: x.diagonal(), (4, 4))
    check(lambda x: x.diagonal(), (3, 5))
    check(lambda x: x.diagonal(), (5, 3))
    check(lambda x: x.diag(), (4,))
    check(lambda x: x.diag(), (1,))


def test_meshgrid_is_pytorchs_in_both_indexings():
    for indexing in ("ij", "xy"):
        ours = Tensor([1, 2, 3]).meshgrid(Tensor([4, 5]), indexing=indexing)
        theirs = torch.meshgrid(torch.tensor([1, 2, 3]), torch.tensor([4, 5]), indexing=indexing)
        assert [t.tolist() for t in ours] == [t.tolist() for t in theirs]


MOVES = ["permute", "flip", "shrink", "pad", "expand", "reshape"]


@hypothesis_settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_chain_of_views(data):
    """Views of views, then arithmetic, then the gradient back through all of them."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=3)))
    steps = []
    now = shape
    for _ in range(data.draw(st.integers(1, 4))):
        move = data.draw(st.sampled_from(MOVES))
        if move == "permute":
            order = tuple(data.draw(st.permutations(range(len(now)))))
            steps.append((lambda x, order=order: x.permute(order),) * 2)
            now = tuple(now[i] for i in order)
        elif move == "flip":
            axis = data.draw(st.integers(0, len(now) - 1))
            steps.append((lambda x, axis=axis: x.flip(axis),) * 2)
        elif move == "shrink":
            axis = data.draw(st.integers(0, len(now) - 1))
            start = data.draw(st.integers(0, now[axis] - 1))
            stop = data.draw(st.integers(start + 1, now[axis]))
            steps.append((lambda x, a=axis, s=start, e=stop: x[(slice(None),) * a + (slice(s, e),)],) * 2)
            now = now[:axis] + (stop - start,) + now[axis + 1:]
        elif move == "pad":
            before, after = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
            steps.append((lambda x, p=(before, after): x.pad(p), lambda x, p=(before, after): F.pad(x, p)))
            now = now[:-1] + (now[-1] + before + after,)
        elif move == "expand":
            steps.append((lambda x: x.unsqueeze(0).expand(2, *x.shape),) * 2)
            now = (2, *now)
        else:
            steps.append((lambda x: x.reshape(-1),) * 2)
            now = (int(np.prod(now)),)

    def run(x, side):
        for step in steps:
            x = step[side](x * 1.5)
        return x * x
    check(lambda x: run(x, 0), lambda x: run(x, 1), shape)


def test_seeds_do_not_collide():
    assert seeded(1).integers(1 << 30) != seeded(2).integers(1 << 30)


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_each_element_as_often_as_a_vector_says(dim):
    counts = {None: [2, 0, 1, 3, 1, 0], 0: [0, 2], 1: [1, 0, 3]}[dim]
    check(lambda x: x.repeat_interleave(Tensor(counts), dim), lambda x: x.repeat_interleave(torch.tensor(counts), dim),
          (2, 3))
    check(lambda x: x.repeat_interleave(Tensor([2]), dim), lambda x: x.repeat_interleave(torch.tensor([2]), dim),
          (2, 3))
