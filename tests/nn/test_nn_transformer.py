"""Transformers against PyTorch's: names, order, values and gradients with masks, before and behind norms."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of layers, is not installed")

from nn_reference import close, compare, copy_weights  # noqa: E402

from glassgrad import Tensor, nn  # noqa: E402
from glassgrad.nn.state import get_state_dict  # noqa: E402

T = torch.nn
CAUSAL = np.triu(np.ones((5, 5), dtype=bool), 1)


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def padding(times, *lengths):
    return np.arange(times) >= np.array(lengths)[:, None]


def same_names(ours, theirs):
    assert list(get_state_dict(ours)) == list(theirs.state_dict())


@pytest.mark.parametrize("options", [{}, dict(batch_first=True, norm_first=True, activation="gelu"), dict(bias=False)])
def test_an_encoder_layer_is_pytorchs(rng, options):
    make = lambda n: n.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)
    ours, theirs = make(nn), make(T)
    same_names(ours, theirs)
    x = numbers(rng, 3, 5, 8) if options.get("batch_first") else numbers(rng, 5, 3, 8)
    compare(ours, theirs, x, atol=2e-5, src_mask=CAUSAL, src_key_padding_mask=padding(5, 5, 4, 2))


@pytest.mark.parametrize("options", [{}, dict(batch_first=True, norm_first=True), dict(bias=False)])
def test_a_decoder_layer_is_pytorchs(rng, options):
    make = lambda n: n.TransformerDecoderLayer(8, 2, 16, dropout=0.0, **options)
    ours, theirs = make(nn), make(T)
    same_names(ours, theirs)
    first = options.get("batch_first")
    x, memory = numbers(rng, *((3, 5, 8) if first else (5, 3, 8))), numbers(rng, *((3, 4, 8) if first else (4, 3, 8)))
    compare(ours, theirs, x, memory, atol=2e-5, tgt_mask=CAUSAL, memory_key_padding_mask=padding(4, 4, 2, 1))


def test_stacks_are_copies_of_one_layer(rng):
    make = lambda n: n.TransformerEncoder(n.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, n.LayerNorm(8))
    ours, theirs = make(nn), make(T)
    same_names(ours, theirs)
    first, second = (ours.layers[i].linear1.weight for i in (0, 1))
    assert first is not second and first.tolist() == second.tolist()
    compare(ours, theirs, numbers(rng, 5, 3, 8), atol=2e-5)
    assert ours.layers[0].linear1.weight.grad.tolist() != ours.layers[1].linear1.weight.grad.tolist()


def test_encoder_and_decoder_together(rng):
    make = lambda n: n.Transformer(8, 2, 1, 2, 16, dropout=0.0)
    ours, theirs = make(nn), make(T)
    same_names(ours, theirs)
    bound = np.sqrt(6 / (16 + 8))
    assert 0.8 * bound < np.abs(ours.encoder.layers[0].linear1.weight.numpy()).max() <= bound
    mask = nn.Transformer.generate_square_subsequent_mask(5).numpy()
    np.testing.assert_array_equal(mask, T.Transformer.generate_square_subsequent_mask(5).numpy())
    compare(ours, theirs, numbers(rng, 4, 3, 8), numbers(rng, 5, 3, 8), atol=3e-5, tgt_mask=mask)


def test_causal_without_a_mask_is_the_causal_mask(rng):
    layer, theirs = nn.TransformerEncoderLayer(8, 2, 16), T.TransformerEncoderLayer(8, 2, 16).eval()
    copy_weights(theirs, layer)
    x = numbers(rng, 5, 3, 8)
    close(layer(Tensor(x), is_causal=True), theirs(torch.tensor(x), torch.tensor(CAUSAL)), "causal", atol=2e-5)


def test_dropout_is_for_training(rng):
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5), Tensor(numbers(rng, 5, 3, 8))
    assert layer(x).tolist() == layer(x).tolist()
    with Tensor.train():
        assert layer(x).tolist() != layer(x).tolist()
