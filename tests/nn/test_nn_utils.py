"""torch.nn.utils and the weights that are mostly zeros, beside PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from glassgrad import Tensor, nn
from glassgrad.base.errors import InputError, ShapeError
from glassgrad.nn.utils import clip_grad_norm_, pad_sequence, parameters_to_vector, unpad_sequence, vector_to_parameters

torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")
U = torch.nn.utils


def test_parameters_as_one_vector() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    vector = parameters_to_vector(model.parameters())
    assert vector.shape == (26,)
    vector.square().sum().backward()
    np.testing.assert_allclose(model[0].weight.grad.numpy(), 2 * model[0].weight.numpy())
    values = np.arange(26, dtype=np.float32)
    vector_to_parameters(Tensor(values), model.parameters())
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    U.vector_to_parameters(torch.tensor(values), theirs.parameters())
    for p, q in zip(model.parameters(), theirs.parameters()):
        assert p.tolist() == q.tolist()
    assert parameters_to_vector(model.parameters()).tolist() == values.tolist()
    assert clip_grad_norm_ is nn.utils.clip_grad_norm_
    with pytest.raises(ShapeError, match="the vector does not fit the parameters"):
        vector_to_parameters(Tensor([1.0]), model.parameters())
    with pytest.raises(InputError, match="there are no parameters to make a vector of"):
        parameters_to_vector([])


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"padding_value": 7.0, "padding_side": "left"}])
def test_sequences_of_one_length(rng: np.random.Generator, options: dict) -> None:
    arrays = [rng.standard_normal((n, 2)).astype(np.float32) for n in (3, 1, 4)]
    ours = pad_sequence([Tensor(a) for a in arrays], **options)
    assert ours.tolist() == U.rnn.pad_sequence([torch.tensor(a) for a in arrays], **options).tolist()
    if "padding_side" not in options:
        parts = unpad_sequence(ours, Tensor([3, 1, 4]), options.get("batch_first", False))
        assert all(part.tolist() == a.tolist() for part, a in zip(parts, arrays))
    with pytest.raises(InputError, match="these sequences cannot be padded"):
        pad_sequence([], **options)


@pytest.mark.parametrize("shape, groups", [((3, 3, 3), 1), ((4, 2, 3, 4), 2), ((2, 5, 2, 3, 1), 1), ((6, 2, 5), 3)])
def test_a_convolution_that_passes_its_input_on(shape: tuple[int, ...], groups: int) -> None:
    ours, theirs = nn.init.dirac_(Tensor.ones(*shape), groups), torch.nn.init.dirac_(torch.ones(shape), groups)
    assert ours.tolist() == theirs.tolist()
    with pytest.raises(ShapeError, match="dirac_ fills the weight of a convolution"):
        nn.init.dirac_(Tensor.ones(2, 2))


def test_columns_with_zeros() -> None:
    weight = nn.init.sparse_(Tensor.ones(40, 30), 0.25, std=0.1)
    theirs = torch.nn.init.sparse_(torch.ones(40, 30), 0.25, std=0.1)
    assert (weight == 0).sum(0).tolist() == (theirs == 0).sum(0).tolist()
    assert 0.08 < weight[weight != 0].std().item() < 0.12
    with pytest.raises(ShapeError, match="sparse_ fills a matrix"):
        nn.init.sparse_(Tensor.ones(3), 0.5)
