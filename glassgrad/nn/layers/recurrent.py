"""Define recurrent networks: the cells RNN, LSTM and GRU, which do one step, and the layers, which do all. In: an input
and a state, or a sequence (time, batch, size). Out: the next state, or every output and the last state.

Gates are stacked along a weight's rows, in PyTorch's order. The inputs of all steps are multiplied at once; the steps
themselves are sequential. Several layers, both directions and dropout between layers work as in PyTorch, and parameters
have the same names (`weight_ih_l0_reverse`). The batch may be left out. Of a `PackedSequence`, each sequence keeps its
state where it has no step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import uniform_within
from glassgrad.nn.sequences import PackedSequence, has_step, pad_packed_sequence, repacked
from glassgrad.tensor import checks
from glassgrad.tensor.recurrence import states_of_steps
from glassgrad.tensor.tensor import Tensor

MOST_LAYERS = 10_000        # more are most likely a mistake, and would take hours to create


# -- the formulas --------------------------------------------------------------------------------------------------
def nonlinearity_of(name: str) -> Callable[[Tensor], Tensor]:
    """Return the nonlinearity with this name.

    >>> nonlinearity_of("relu")(Tensor([-1.0])).tolist()
    [0.0]
    """
    checks.choice("a recurrent network has one of two nonlinearities", 'write nonlinearity="tanh"',
                  among=("tanh", "relu"), nonlinearity=name)
    return Tensor.tanh if name == "tanh" else Tensor.relu


def rnn_step(seen: Tensor, recalled: Tensor, nonlinearity: str) -> Tensor:
    """f(seen + recalled), where seen = W_ih x + b_ih and recalled = W_hh h + b_hh.

    >>> rnn_step(Tensor([[1.0]]), Tensor([[-3.0]]), "relu").tolist()
    [[0.0]]
    """
    return nonlinearity_of(nonlinearity)(seen + recalled)


def lstm_step(seen: Tensor, recalled: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'), with the gates i, f, g, o.

    >>> h, c = lstm_step(Tensor([[0.0] * 4]), Tensor([[0.0] * 4]), Tensor([[2.0]]))
    >>> c.tolist()
    [[1.0]]
    """
    i, f, g, o = (seen + recalled).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_step(seen: Tensor, recalled: Tensor, h: Tensor) -> Tensor:
    """h' = (1 - z) tanh(n_x + r n_h) + z h, with the gates r and z from seen + recalled.

    >>> gru_step(Tensor([[0.0] * 3]), Tensor([[0.0] * 3]), Tensor([[2.0]])).tolist()
    [[1.0]]
    """
    (r_x, z_x, n_x), (r_h, z_h, n_h) = seen.chunk(3, -1), recalled.chunk(3, -1)
    z = (z_x + z_h).sigmoid()
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return (1 - z) * n + z * h


# -- cells ---------------------------------------------------------------------------------------------------------
class _Cell(Layer):
    """The base of cells: linear maps of the input and of the state, with `gates` outputs per hidden unit."""
    shows: tuple[str, ...] = ("input_size", "hidden_size")
    gates = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        if hidden_size < 1 or input_size < 0:
            raise InputError("a recurrent cell cannot have these sizes",
                             given=f"input_size={input_size}, hidden_size={hidden_size}",
                             expected="at least 1 hidden value", fix="check the sizes")
        self.input_size, self.hidden_size = input_size, hidden_size
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        self.weight_ih = uniform_within(bound, rows, input_size)
        self.weight_hh = uniform_within(bound, rows, hidden_size)
        self.bias_ih = uniform_within(bound, rows) if bias else None
        self.bias_hh = uniform_within(bound, rows) if bias else None

    def _halves(self, x: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return W_ih x + b_ih, W_hh h + b_hh, and the state h (zeros if there is none)."""
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            self._refuse(x, f"(batch, {self.input_size}) or ({self.input_size},)",
                         "check input_size; for whole sequences use the layer without Cell")
        h = self._state(x, h)
        return (x.linear(self.weight_ih.transpose(), self.bias_ih),
                h.linear(self.weight_hh.transpose(), self.bias_hh), h)

    def _state(self, x: Tensor, state: Tensor | None) -> Tensor:
        shape = (*x.shape[:-1], self.hidden_size)
        if state is None:
            return Tensor.zeros(*shape, device=x.device, dtype=x.dtype, requires_grad=False)
        if state.shape != shape:
            self._refuse(f"a state of shape {state.shape} with an input of {x.shape}", f"a state of shape {shape}",
                         "start with no state, and hand back what the last call returned")
        return state


class RNNCell(_Cell):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh).

    >>> RNNCell(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """
    shows = ("input_size", "hidden_size", "nonlinearity")

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"):
        nonlinearity_of(nonlinearity)
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        seen, recalled, _ = self._halves(x, h)
        return rnn_step(seen, recalled, self.nonlinearity)


class LSTMCell(_Cell):
    """One step of a long short-term memory: from x and (h, c) to the next (h, c).

    >>> h, c = LSTMCell(3, 4)(Tensor.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """
    gates = 4

    def forward(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        seen, recalled, _ = self._halves(x, None if hc is None else hc[0])
        return lstm_step(seen, recalled, self._state(x, None if hc is None else hc[1]))


class GRUCell(_Cell):
    """One step of a gated recurrent unit.

    >>> GRUCell(3, 4)(Tensor.ones(2, 3)).shape
    (2, 4)
    """
    gates = 3

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return gru_step(*self._halves(x, h))


# -- layers --------------------------------------------------------------------------------------------------------
class _Recurrent(Layer):
    """The base of recurrent layers: stacks layers and directions; a subclass defines one step."""
    shows: tuple[str, ...] = ("input_size", "hidden_size", "num_layers", "bidirectional")
    gates, states = 1, 1

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0):
        if not 1 <= num_layers <= MOST_LAYERS or not 0 <= proj_size < hidden_size:
            raise InputError("a recurrent network cannot have these sizes",
                             given=f"num_layers={num_layers}, hidden_size={hidden_size}, proj_size={proj_size}",
                             expected=f"1 to {MOST_LAYERS} layers, and a projection smaller than hidden_size",
                             fix="check the sizes")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.proj_size = proj_size
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, dropout, bidirectional
        self.directions = ("", "_reverse") if bidirectional else ("",)
        self.out_size = proj_size or hidden_size
        bound, rows = 1 / math.sqrt(hidden_size), self.gates * hidden_size
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else self.out_size * len(self.directions)
            for direction in self.directions:
                shapes: dict[str, tuple[int, ...]] = {"weight_ih": (rows, inputs), "weight_hh": (rows, self.out_size)}
                if bias:
                    shapes.update(bias_ih=(rows,), bias_hh=(rows,))
                if proj_size:
                    shapes["weight_hr"] = (proj_size, hidden_size)
                for name, shape in shapes.items():
                    setattr(self, f"{name}_l{layer}{direction}", uniform_within(bound, *shape))

    def _step(self, seen: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the next state, whose first part is the output."""
        raise NotImplementedError

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Any]:
        out, (last,) = self._run(x, None if h is None else (h,))
        return out, last

    def _run_direction(self, x: Tensor, name: str, state: tuple[Tensor, ...], inside: Tensor | None) \
            -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction over (time, batch, size), where `inside` (time, batch, 1) is true."""
        w_ih, w_hh = getattr(self, "weight_ih" + name), getattr(self, "weight_hh" + name)
        b_ih, b_hh = getattr(self, "bias_ih" + name, None), getattr(self, "bias_hh" + name, None)
        project = getattr(self, "weight_hr" + name, None)
        seen = x.linear(w_ih.transpose(), b_ih)                       # (time, batch, gates * hidden)

        def step(state: tuple[Tensor, ...], row: Tensor, *inside: Tensor) -> tuple[Tensor, ...]:
            after = self._step(row, state[0].linear(w_hh.transpose(), b_hh), state)
            if project is not None:
                after = (after[0].linear(project.transpose()), *after[1:])
            return tuple([inside[0].where(new, old) for new, old in zip(after, state)]) if inside else after

        backwards = name.endswith("_reverse")
        states = states_of_steps(step, state, [seen] if inside is None else [seen, inside], backwards)
        return states[0], tuple([s[0 if backwards else -1] for s in states])

    def _run(self, x: Any, start: tuple[Tensor, ...] | None) -> tuple[Any, tuple[Tensor, ...]]:
        """Run all layers; return the output, with the axes of the input, and the last state of every layer and
        direction."""
        if isinstance(x, PackedSequence):
            padded, _ = pad_packed_sequence(x)
            if padded.ndim != 3 or padded.shape[-1] != self.input_size:
                self._refuse(x.data, f"packed steps of shape (steps, {self.input_size})", "check input_size")
            out, ends = self._run_layers(padded, self._start(padded, start, False), has_step(x, padded.shape[0], 1))
            return repacked(out, x), ends
        axis = 0 if not self.batch_first or x.ndim == 2 else 1
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size or x.shape[axis] == 0:
            order = "batch, time" if self.batch_first else "time, batch"
            self._refuse(x, f"({order}, {self.input_size}) or (time, {self.input_size}), "
                         "with at least one step", "check input_size and batch_first")
        seq = x.unsqueeze(1) if x.ndim == 2 else x.transpose(0, 1) if self.batch_first else x
        seq, ends = self._run_layers(seq, self._start(seq, start, x.ndim == 2), None)
        if x.ndim == 2:
            return seq.squeeze(1), tuple(e.squeeze(1) for e in ends)
        return (seq.transpose(0, 1) if self.batch_first else seq), ends

    def _run_layers(self, seq: Tensor, states: tuple[Tensor, ...], inside: Tensor | None) \
            -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run all layers over (time, batch, size)."""
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in self.directions:
                before = tuple(s[len(last)] for s in states)
                out, state = self._run_direction(seq, f"_l{layer}{direction}", before, inside)
                outputs.append(out)
                last.append(state)
            seq = outputs[0] if len(outputs) == 1 else outputs[0].cat(outputs[1], dim=-1)
            if self.dropout and layer < self.num_layers - 1:
                seq = seq.dropout(self.dropout)
        return seq, tuple(Tensor.stack(*parts) for parts in zip(*last))     # (layers * directions, batch, size)

    def _start(self, seq: Tensor, given: tuple[Tensor, ...] | None, lone: bool) -> tuple[Tensor, ...]:
        """Return the state before the first step: (layers * directions, batch, size) for each part of the state."""
        shapes = [(self.num_layers * len(self.directions), seq.shape[1], size)
                  for size in (self.out_size, self.hidden_size)[:self.states]]
        if given is None:
            return tuple(Tensor.zeros(*s, device=seq.device, dtype=seq.dtype, requires_grad=False) for s in shapes)
        states = tuple(g.unsqueeze(1) if lone and g.ndim == 2 else g for g in given)
        if [s.shape for s in states] != shapes:
            self._refuse(f"a state of shape {', '.join(str(g.shape) for g in given)}",
                         f"(layers * directions, batch, size): {', '.join(map(str, shapes))}",
                         "start with no state, and hand back what the last call returned")
        return states


class RNN(_Recurrent):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh) over a sequence: (outputs, last h).

    >>> out, h = RNN(3, 4)(Tensor.ones(5, 2, 3))
    >>> out.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """
    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        nonlinearity_of(nonlinearity)
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity

    def _step(self, seen: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (rnn_step(seen, recalled, self.nonlinearity),)


class GRU(_Recurrent):
    """Gated recurrent units over a sequence: (outputs, last h).

    >>> out, h = GRU(3, 4, num_layers=2)(Tensor.ones(5, 2, 3))
    >>> out.shape, h.shape
    ((5, 2, 4), (2, 2, 4))
    """
    gates = 3

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False):
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def _step(self, seen: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (gru_step(seen, recalled, state[0]),)


class LSTM(_Recurrent):
    """Long short-term memory over a sequence: (outputs, (last h, last c)).

    >>> out, (h, c) = LSTM(3, 4, bidirectional=True)(Tensor.ones(5, 2, 3))
    >>> out.shape, h.shape, c.shape
    ((5, 2, 8), (2, 2, 4), (2, 2, 4))
    """
    gates, states = 4, 2

    def _step(self, seen: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return lstm_step(seen, recalled, state[1])

    def forward(self, x: Tensor,  # type: ignore[override]
                hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, (h, c) = self._run(x, hc)
        return out, (h, c)
