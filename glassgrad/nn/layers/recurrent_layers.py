"""Recurrent networks over sequences: RNN, LSTM, GRU. In: (time, batch, size). Out: every output, the last state.

The inputs of all steps are multiplied at once; the steps themselves follow one another. Several layers, both
directions and dropout between layers are as in PyTorch, and so are the names of the parameters
(`weight_ih_l0_reverse`).
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.layers.recurrent_cells import gru_step, lstm_step, nonlinearity_of, rnn_step
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import uniform_within
from glassgrad.tensor.tensor import Tensor

__all__ = ["RNN", "LSTM", "GRU"]

MOST_LAYERS = 10_000        # more are a mistake, and would be made for hours


class _Recurrent(Layer):
    """Layers and directions; a subclass says what one step does."""
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
        """The next state; its first part is the output."""
        raise NotImplementedError

    def _walk(self, x: Tensor, name: str, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction over (time, batch, size)."""
        w_ih, w_hh = getattr(self, "weight_ih" + name), getattr(self, "weight_hh" + name)
        b_ih, b_hh = getattr(self, "bias_ih" + name, None), getattr(self, "bias_hh" + name, None)
        project = getattr(self, "weight_hr" + name, None)
        seen = x.linear(w_ih.transpose(), b_ih)                       # (time, batch, gates * hidden)
        outputs: list[Any] = [None] * x.shape[0]
        times = range(x.shape[0])
        for t in reversed(times) if name.endswith("_reverse") else times:
            state = self._step(seen[t], state[0].linear(w_hh.transpose(), b_hh), state)
            if project is not None:
                state = (state[0].linear(project.transpose()), *state[1:])
            outputs[t] = state[0]
        return Tensor.stack(*outputs), state

    def _run(self, x: Tensor, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All layers: the output, its axes as they came in, and the last state of every layer and direction."""
        axis = 0 if not self.batch_first or x.ndim == 2 else 1
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size or x.shape[axis] == 0:
            order = "batch, time" if self.batch_first else "time, batch"
            self._refuse(f"an input of shape {x.shape}",
                         f"({order}, {self.input_size}) or (time, {self.input_size}), "
                         "with at least one step", "check input_size and batch_first")
        seq = x.unsqueeze(1) if x.ndim == 2 else x.transpose(0, 1) if self.batch_first else x
        states = self._start(seq, start, x.ndim == 2)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in self.directions:
                out, state = self._walk(seq, f"_l{layer}{direction}", tuple(s[len(last)] for s in states))
                outputs.append(out)
                last.append(state)
            seq = outputs[0] if len(outputs) == 1 else outputs[0].cat(outputs[1], dim=-1)
            if self.dropout and layer < self.num_layers - 1:
                seq = seq.dropout(self.dropout)
        ends = tuple(Tensor.stack(*parts) for parts in zip(*last))     # (layers * directions, batch, size)
        if x.ndim == 2:
            return seq.squeeze(1), tuple(e.squeeze(1) for e in ends)
        return (seq.transpose(0, 1) if self.batch_first else seq), ends

    def _start(self, seq: Tensor, given: tuple[Tensor, ...] | None, lone: bool) -> tuple[Tensor, ...]:
        """The state before the first step: (layers * directions, batch, size) for each part of the state."""
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

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, (last,) = self._run(x, None if h is None else (h,))
        return out, last


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

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, (last,) = self._run(x, None if h is None else (h,))
        return out, last


class LSTM(_Recurrent):
    """Long short-term memory over a sequence: (outputs, (last h, last c)).

    >>> out, (h, c) = LSTM(3, 4, bidirectional=True)(Tensor.ones(5, 2, 3))
    >>> out.shape, h.shape, c.shape
    ((5, 2, 8), (2, 2, 4), (2, 2, 4))
    """
    gates, states = 4, 2

    def _step(self, seen: Tensor, recalled: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return lstm_step(seen, recalled, state[1])

    def forward(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, (h, c) = self._run(x, hc)
        return out, (h, c)
