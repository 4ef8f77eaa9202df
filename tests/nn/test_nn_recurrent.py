"""Recurrent networks and attention against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch, the reference of layers, is not installed")

from nn_reference import close, compare, copy_weights, flat  # noqa: E402

from glassgrad import Tensor, nn  # noqa: E402

T = torch.nn


def numbers(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


# -- cells ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name,options", [("RNNCell", {}), ("RNNCell", dict(nonlinearity="relu")), ("GRUCell", {}),
                                          ("GRUCell", dict(bias=False))])
def test_recurrent_cells_are_pytorchs_with_and_without_state(rng, name, options):
    make = lambda n: getattr(n, name)(3, 4, **options)
    compare(make(nn), make(T), numbers(rng, 2, 3))
    compare(make(nn), make(T), numbers(rng, 2, 3), numbers(rng, 2, 4))
    compare(make(nn), make(T), numbers(rng, 3), numbers(rng, 4))


def test_an_lstm_cell_takes_and_returns_both_states(rng):
    ours, theirs = nn.LSTMCell(3, 4), T.LSTMCell(3, 4)
    compare(ours, theirs, numbers(rng, 2, 3))
    x, h, c = numbers(rng, 2, 3), numbers(rng, 2, 4), numbers(rng, 2, 4)
    out, expected = ours(Tensor(x), (Tensor(h), Tensor(c))), theirs(torch.tensor(x),
                                                                    (torch.tensor(h), torch.tensor(c)))
    for a, b in zip(out, expected):
        close(a, b, "state")


# -- sequences -----------------------------------------------------------------------------------------------------
SEQUENCES = [("RNN", {}), ("GRU", dict(num_layers=2)), ("LSTM", dict(bias=False)),
             ("LSTM", dict(num_layers=2, bidirectional=True)),
             ("GRU", dict(bidirectional=True, batch_first=True)), ("LSTM", dict(proj_size=2)),
             ("RNN", dict(nonlinearity="relu", num_layers=2))]


@pytest.mark.parametrize("name,options", SEQUENCES)
def test_recurrent_layers_over_sequences_are_pytorchs(rng, name, options):
    compare(getattr(nn, name)(3, 4, **options), getattr(T, name)(3, 4, **options), numbers(rng, 3, 2, 3), atol=1e-5)


def test_sequences_with_a_state_and_without_a_batch(rng):
    ours, theirs = nn.GRU(3, 4, num_layers=2), T.GRU(3, 4, num_layers=2)
    compare(ours, theirs, numbers(rng, 3, 2, 3), numbers(rng, 2, 2, 4), atol=1e-5)
    copy_weights(theirs, ours)
    x, h = numbers(rng, 3, 3), numbers(rng, 2, 4)
    for a, b in zip(flat(ours(Tensor(x), Tensor(h))), flat(theirs(torch.tensor(x), torch.tensor(h)))):
        close(a, b, "without a batch")
    lstm, torch_lstm = nn.LSTM(3, 4), T.LSTM(3, 4)
    copy_weights(torch_lstm, lstm)
    x, h, c = numbers(rng, 3, 2, 3), numbers(rng, 1, 2, 4), numbers(rng, 1, 2, 4)
    for a, b in zip(flat(lstm(Tensor(x), (Tensor(h), Tensor(c)))),
                    flat(torch_lstm(torch.tensor(x), (torch.tensor(h), torch.tensor(c))))):
        close(a, b, "with a state")


# -- attention -----------------------------------------------------------------------------------------------------
def masks(rng, times):
    causal = np.triu(np.ones((times, times), dtype=bool), 1)
    padding = np.zeros((2, times), dtype=bool)
    padding[1, -1] = True
    return causal, padding


@pytest.mark.parametrize("options",
                         [{}, dict(batch_first=True), dict(bias=False), dict(add_bias_kv=True, add_zero_attn=True)])
def test_multihead_attention_is_pytorchs(rng, options):
    x = numbers(rng, 2, 5, 8) if options.get("batch_first") else numbers(rng, 5, 2, 8)
    ours, theirs = nn.MultiheadAttention(8, 2, **options), T.MultiheadAttention(8, 2, **options)
    if not options.get("bias", True):
        assert ours.in_proj_bias is None
    compare(ours, theirs, x, x[:, ::-1].copy(), x * 2, atol=1e-5)


def test_attention_with_other_sizes_of_keys_and_values(rng):
    ours, theirs = nn.MultiheadAttention(8, 2, kdim=5, vdim=3), T.MultiheadAttention(8, 2, kdim=5, vdim=3)
    compare(ours, theirs, numbers(rng, 4, 2, 8), numbers(rng, 6, 2, 5), numbers(rng, 6, 2, 3), atol=1e-5)


@pytest.mark.parametrize("options", [dict(need_weights=False), dict(average_attn_weights=False), {}])
def test_multihead_attention_takes_every_kind_of_mask(rng, options):
    causal, padding = masks(rng, 5)
    ours, theirs = nn.MultiHeadAttention(8, 2), T.MultiheadAttention(8, 2)
    x = numbers(rng, 5, 2, 8)
    compare(ours, theirs, x, x, x, attn_mask=causal, key_padding_mask=padding, atol=1e-5, **options)
    added = numbers(rng, 4, 5, 5)
    compare(ours, theirs, x, x, x, attn_mask=added, atol=1e-5, **options)


def test_attention_of_one_example_to_itself(rng):
    ours, theirs = nn.MultiheadAttention(8, 2), T.MultiheadAttention(8, 2)
    copy_weights(theirs, ours)
    x = numbers(rng, 5, 8)
    for a, b in zip(ours(Tensor(x)), theirs(*[torch.tensor(x)] * 3)):
        close(a, b, "without a batch", atol=1e-5)
    causal, _ = masks(rng, 5)
    out, _ = ours(Tensor(x), is_causal=True)
    close(out, theirs(*[torch.tensor(x)] * 3, attn_mask=torch.tensor(causal))[0], "causal", atol=1e-5)
