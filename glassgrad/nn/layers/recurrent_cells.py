"""One step of a recurrent network: the cells RNN, LSTM and GRU. In: an input and a state. Out: the next state.

Shapes are (batch, size), or (size,) without a batch. Gates stand one below the other in a weight, in PyTorch's order.
`recurrent_layers` walks over time with these.
"""

from __future__ import annotations

import math
from typing import Any

from glassgrad.base.errors import InputError
from glassgrad.nn.modules.layer import Layer
from glassgrad.nn.modules.new_parameters import uniform_within
from glassgrad.tensor.tensor import Tensor

__all__ = ["RNNCell", "LSTMCell", "GRUCell", "rnn_step", "lstm_step", "gru_step", "nonlinearity_of"]


# -- the formulas --------------------------------------------------------------------------------------------------
def nonlinearity_of(name: str) -> Any:
    """The function that PyTorch calls so.

    >>> nonlinearity_of("relu")(Tensor([-1.0])).tolist()
    [0.0]
    """
    if name not in ("tanh", "relu"):
        raise InputError("a recurrent network has one of two nonlinearities", given=f"nonlinearity={name!r}",
                         expected='"tanh" or "relu"', fix='write nonlinearity="tanh"')
    return Tensor.tanh if name == "tanh" else Tensor.relu


def rnn_step(seen: Tensor, recalled: Tensor, nonlinearity: str) -> Tensor:
    """f(W_ih x + b_ih + W_hh h + b_hh), of which `seen` and `recalled` are the two halves.

    >>> rnn_step(Tensor([[1.0]]), Tensor([[-3.0]]), "relu").tolist()
    [[0.0]]
    """
    out: Tensor = nonlinearity_of(nonlinearity)(seen + recalled)
    return out


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
    """h' = (1 - z) tanh(n_x + r n_h) + z h, with the gates r and z of both halves together.

    >>> gru_step(Tensor([[0.0] * 3]), Tensor([[0.0] * 3]), Tensor([[2.0]])).tolist()
    [[1.0]]
    """
    (r_x, z_x, n_x), (r_h, z_h, n_h) = seen.chunk(3, -1), recalled.chunk(3, -1)
    z = (z_x + z_h).sigmoid()
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    return (1 - z) * n + z * h


# -- cells ---------------------------------------------------------------------------------------------------------
class _Cell(Layer):
    """Two linear maps, of the input and of the state, with `gates` outputs per hidden unit."""
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
        """W_ih x + b_ih, W_hh h + b_hh, and the state h (zeros if there is none)."""
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            self._refuse(f"an input of shape {x.shape}", f"(batch, {self.input_size}) or ({self.input_size},)",
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
