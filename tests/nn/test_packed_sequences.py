"""Sequences of different lengths, packed: the values, the recurrent layers and their gradients are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glassgrad.torch as adapter
from glassgrad import InputError, ShapeError, Tensor, nn
from glassgrad.jit import TinyJit
from glassgrad.nn.utils import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence

torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")
rnn = torch.nn.utils.rnn

LENGTHS = [[5, 3, 3, 1], [2, 5, 1, 4], [1], [3, 3], [1, 6]]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("inner", [(), (2,), (2, 3)], ids=str)
def test_packing_and_padding(rng: np.random.Generator, lengths: list[int], batch_first: bool,
                             inner: tuple[int, ...]) -> None:
    time, batch = max(lengths) + 1, len(lengths)
    values = rng.standard_normal((*((batch, time) if batch_first else (time, batch)), *inner)).astype(np.float32)
    ours = pack_padded_sequence(Tensor(values), Tensor(lengths), batch_first, enforce_sorted=False)
    theirs = rnn.pack_padded_sequence(torch.tensor(values), torch.tensor(lengths), batch_first, enforce_sorted=False)
    assert ours.data.tolist() == theirs.data.tolist() and ours.batch_sizes == theirs.batch_sizes.tolist()
    assert sorted(ours.sorted_indices) == sorted(theirs.sorted_indices.tolist()) and ours.lengths() == lengths
    for options in ({}, {"padding_value": -1.0}, {"total_length": time + 2}):
        padded, counts = pad_packed_sequence(ours, batch_first, **options)
        expected, known = rnn.pad_packed_sequence(theirs, batch_first, **options)
        assert padded.tolist() == expected.tolist() and counts.tolist() == known.tolist() == lengths
        assert counts.dtype.name == "int64"
    pieces = [Tensor(rng.standard_normal((n, *inner)).astype(np.float32)) for n in lengths]
    again = unpack_sequence(pack_sequence(pieces, enforce_sorted=False))
    assert [p.tolist() for p in again] == [p.tolist() for p in pieces]


@pytest.mark.parametrize("name, options", [
    ("RNN", {}), ("RNN", dict(nonlinearity="relu", num_layers=2)), ("GRU", dict(bidirectional=True)),
    ("GRU", dict(num_layers=2, bidirectional=True, batch_first=True)), ("LSTM", {}),
    ("LSTM", dict(num_layers=2, bidirectional=True)), ("LSTM", dict(bidirectional=True, proj_size=2))], ids=str)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("with_state", [False, True])
def test_recurrent_layers_are_pytorchs(rng: np.random.Generator, name: str, options: dict[str, Any], lengths: list[int],
                                       with_state: bool) -> None:
    values = rng.standard_normal((max(lengths), len(lengths), 3)).astype(np.float32)
    theirs = getattr(torch.nn, name)(3, 4, **options)
    ours = getattr(nn, name)(3, 4, **options)
    ours.load_state_dict({n: p.detach().numpy() for n, p in theirs.state_dict().items()})
    x, t = Tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    sizes = [options.get("proj_size") or 4, 4][:2 if name == "LSTM" else 1]
    parts = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    shapes = [(parts, len(lengths), size) for size in sizes] if with_state else []
    start = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def run(layer: Any, sequence: Any, make: Any) -> list[Any]:
        given = [make(s) for s in start]
        state = [] if not given else [tuple(given)] if name == "LSTM" else given
        out, last = layer(sequence, *state)
        return [out.data, *(last if name == "LSTM" else [last])]

    found = run(ours, pack_padded_sequence(x, lengths, enforce_sorted=False), Tensor)
    expected = run(theirs, rnn.pack_padded_sequence(t, torch.tensor(lengths), enforce_sorted=False), torch.tensor)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-4, atol=1e-5)
    sum([(f * f).sum() for f in found], Tensor(0.0)).backward()
    sum([(f * f).sum() for f in expected], torch.tensor(0.0)).backward()
    np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-3, atol=1e-5)
    for (own, p), (other_name, q) in zip(sorted(ours.named_parameters()), sorted(theirs.named_parameters())):
        assert own == other_name
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-3, atol=1e-4, err_msg=own)


def test_the_data_may_be_replaced_and_the_jit_takes_it(rng: np.random.Generator) -> None:
    """`PackedSequence(embedding(packed.data), packed.batch_sizes, ..)`, as scripts for PyTorch embed a packed text."""
    words, lengths = Tensor([[4, 2, 1], [3, 0, 0]]), [3, 1]
    table, layer = nn.Embedding(6, 3), nn.LSTM(3, 4, batch_first=True)

    def last(words: Tensor, lengths: list[int]) -> Tensor:
        packed = pack_padded_sequence(words, lengths, batch_first=True)
        out, (h, _) = layer(PackedSequence(table(packed.data), *packed[1:]))
        padded, _ = pad_packed_sequence(out.to("CPU"), batch_first=True)
        assert padded.shape == (2, 3, 4)
        return h[0]

    jitted = TinyJit(last)
    alone = layer(table(words[1:, :1]))[1][0][0, 0].tolist()
    for _ in range(4):
        np.testing.assert_allclose(jitted(words, lengths)[1].numpy(), alone, rtol=1e-5, atol=1e-6)
    assert jitted.captured


def test_what_cannot_be_packed() -> None:
    x = Tensor.ones(3, 2, 4)
    with pytest.raises(InputError, match=r"the sequences are not sorted by length\n  given:    lengths \[1, 3\]"):
        pack_padded_sequence(x, [1, 3])
    for lengths in ([3], [3, 0], [4, 1]):
        with pytest.raises(ShapeError, match="the lengths do not fit the sequences\n.*for 2 sequences of 3 steps"):
            pack_padded_sequence(x, lengths)
    with pytest.raises(ShapeError, match="the sequences are longer than this\n  given:    total_length=2"):
        pad_packed_sequence(pack_padded_sequence(x, [3, 1]), total_length=2)
    with pytest.raises(ShapeError, match=r"LSTM\(.*cannot take this input"):
        nn.LSTM(5, 2)(pack_padded_sequence(x, [3, 1]))


def test_the_names_of_pytorch() -> None:
    packed = adapter.nn.utils.pack_sequence([adapter.tensor([1.0, 2.0]), adapter.tensor([3.0])])
    padded, lengths = adapter.nn.utils.pad_packed_sequence(packed)
    assert type(padded) is type(lengths) is adapter.Tensor and padded.tolist() == [[1.0, 3.0], [2.0, 0.0]]
