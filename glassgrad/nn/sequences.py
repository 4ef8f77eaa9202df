"""Pad and pack sequences of different lengths, as torch.nn.utils.rnn does. In: sequences, or a padded tensor and
lengths. Out: one tensor with padding, or a `PackedSequence` without, which recurrent layers take.

Lengths are numbers of the host, because they decide the shape of what is packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glassgrad.base.errors import InputError, ShapeError
from glassgrad.compiler.graph import dtypes
from glassgrad.tensor.tensor import Tensor


def pad_sequence(sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0,
                 padding_side: str = "right") -> Tensor:
    """Sequences (length, ...) of different lengths as one tensor (longest, batch, ...), or (batch, longest, ...).

    >>> pad_sequence([Tensor([1, 2, 3]), Tensor([4])], batch_first=True).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    if not sequences or padding_side not in ("left", "right"):
        raise InputError("these sequences cannot be padded",
                         given=f"{len(sequences)} sequences, padding_side={padding_side!r}",
                         expected='one or more, and "left" or "right"', fix="leave padding_side out")
    longest = max(each.shape[0] for each in sequences)
    same = []
    for each in sequences:
        missing = longest - each.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        same.append(each.pad((ends, *((0, 0),) * (each.ndim - 1)), value=padding_value))
    return same[0].stack(*same[1:], dim=0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Tensor | Sequence[int],
                   batch_first: bool = False) -> list[Tensor]:
    """The inverse of `pad_sequence`: the sequences without padding.

    >>> [each.tolist() for each in unpad_sequence(Tensor([[1, 2, 3], [4, 0, 0]]), [3, 1], batch_first=True)]
    [[1, 2, 3], [4]]
    """
    rows = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    return [row[:count] for row, count in zip(rows, _numbers(lengths))]


def _numbers(given: Any) -> list[int]:
    """Return lengths or indices as a list."""
    return [int(n) for n in (given.tolist() if hasattr(given, "tolist") else given)]


# -- packed --------------------------------------------------------------------------------------------------
class PackedSequence(NamedTuple):
    """Sequences without padding: first the first steps of all sequences, the longest sequence first, then the second
    steps of those that have one, and so on. The indices are lists, which are None if the sequences were sorted.

    >>> pack_sequence([Tensor([1, 2, 3]), Tensor([4])])
    PackedSequence(data=Tensor([1, 4, 2, 3], dtype=int32, device=CPU), batch_sizes=[2, 1, 1], sorted_indices=None, \
unsorted_indices=None)
    """
    data: Tensor
    batch_sizes: Any                     # how many sequences have a first step, a second step, ...
    sorted_indices: Any = None           # the sequences as they were given, the longest first
    unsorted_indices: Any = None         # where each given sequence is among the sorted ones

    def to(self, *given: Any, **options: Any) -> PackedSequence:
        """The same sequences on another device, or in another element type."""
        return self._replace(data=self.data.to(*given, **options))

    def lengths(self) -> list[int]:
        """The length of each sequence, in the order in which they were given."""
        sizes = _numbers(self.batch_sizes)
        found = [sum(size > at for size in sizes) for at in range(sizes[0])]
        return found if self.unsorted_indices is None else [found[at] for at in _numbers(self.unsorted_indices)]


def _order(lengths: Sequence[int]) -> list[int]:
    """Return which sequences come first, the longest first."""
    return sorted(range(len(lengths)), key=lambda at: -lengths[at])


def _steps(lengths: Sequence[int], order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the step and the sequence of each row of what is packed."""
    return [(step, at) for step in range(lengths[order[0]]) for at in order if lengths[at] > step]


def _packed(rows: Tensor, lengths: Sequence[int], order: Sequence[int]) -> Tensor:
    """Return the rows (time, batch, ...) without padding."""
    batch = rows.shape[1]
    at = Tensor([step * batch + of for step, of in _steps(lengths, order)], device=rows.device)
    return rows.reshape(rows.shape[0] * batch, *rows.shape[2:])[at]


def pack_padded_sequence(input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False,
                         enforce_sorted: bool = True) -> PackedSequence:
    """Padded sequences (time, batch, ...), or (batch, time, ...), without their padding. `enforce_sorted` refuses
    lengths that increase.

    >>> packed = pack_padded_sequence(Tensor([[4, 0, 0], [1, 2, 3]]), [1, 3], batch_first=True, enforce_sorted=False)
    >>> packed.data.tolist(), packed.batch_sizes, packed.sorted_indices
    ([1, 4, 2, 3], [2, 1, 1], [1, 0])
    """
    rows = input.transpose(0, 1) if batch_first else input
    counts = _numbers(lengths)
    if len(counts) != rows.shape[1] or not counts or min(counts) < 1 or max(counts) > rows.shape[0]:
        raise ShapeError("the lengths do not fit the sequences",
                         given=f"lengths {counts} for {rows.shape[1]} sequences of {rows.shape[0]} steps",
                         expected=f"one length per sequence, from 1 to {rows.shape[0]}",
                         fix="check batch_first, and drop empty sequences")
    order = _order(counts)
    is_sorted = order == list(range(len(order)))
    if enforce_sorted and not is_sorted:
        raise InputError("the sequences are not sorted by length", given=f"lengths {counts}",
                         expected="the longest sequence first", fix="pass enforce_sorted=False")
    sizes = [sum(count > step for count in counts) for step in range(max(counts))]
    given = [None, None] if enforce_sorted else [order, [order.index(at) for at in range(len(order))]]
    return PackedSequence(_packed(rows, counts, order), sizes, *given)


def pad_packed_sequence(sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0,
                        total_length: int | None = None) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_padded_sequence`: the padded sequences, and their lengths.

    >>> padded, lengths = pad_packed_sequence(pack_sequence([Tensor([1, 2, 3]), Tensor([4])]), batch_first=True)
    >>> padded.tolist(), lengths.tolist()
    ([[1, 2, 3], [4, 0, 0]], [3, 1])
    """
    data, lengths = sequence.data, sequence.lengths()
    longest = max(lengths)
    if total_length is not None and total_length < longest:
        raise ShapeError("the sequences are longer than this", given=f"total_length={total_length}",
                         expected=f"{longest} or more", fix="leave total_length out")
    steps, batch = total_length or longest, len(lengths)
    places = [0] * (steps * batch)
    for row, (step, at) in enumerate(_steps(lengths, _order(lengths))):
        places[step * batch + at] = row
    found = data[Tensor(places, device=data.device)].reshape(steps, batch, *data.shape[1:])
    inside = has_step(sequence, steps, data.ndim - 1)
    padded = inside.where(found, Tensor(padding_value, dtype=data.dtype, device=data.device))
    padded = padded.transpose(0, 1) if batch_first else padded
    return padded, data.new_tensor(lengths, dtype=dtypes.int64, device="CPU")


def has_step(sequence: PackedSequence, steps: int, axes: int) -> Tensor:
    """Whether each sequence has each step, (time, batch), with so many axes of size 1 after these.

    >>> has_step(pack_sequence([Tensor([1, 2]), Tensor([4])]), 2, 0).tolist()
    [[True, True], [True, False]]
    """
    lengths = sequence.lengths()
    counts = Tensor(lengths, device=sequence.data.device).reshape(1, len(lengths))
    found = Tensor.arange(steps, device=sequence.data.device).reshape(steps, 1) < counts
    return found.reshape(steps, len(lengths), *(1,) * axes)


def repacked(rows: Tensor, sequence: PackedSequence) -> PackedSequence:
    """Padded rows (time, batch, ...), packed as these sequences are."""
    lengths = sequence.lengths()
    return sequence._replace(data=_packed(rows, lengths, _order(lengths)))


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Sequences (length, ...) of different lengths, packed.

    >>> pack_sequence([Tensor([4]), Tensor([1, 2, 3])], enforce_sorted=False).data.tolist()
    [1, 4, 2, 3]
    """
    return pack_padded_sequence(pad_sequence(sequences), [each.shape[0] for each in sequences],
                                enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """The inverse of `pack_sequence`.

    >>> [each.tolist() for each in unpack_sequence(pack_sequence([Tensor([1, 2, 3]), Tensor([4])]))]
    [[1, 2, 3], [4]]
    """
    return unpad_sequence(*pad_packed_sequence(packed_sequences))
