"""Define RNN, GRU and LSTM. In: (time, batch, size), or (batch, time, size) with `layout` 1. Out: all states and the
last.

The steps of the time axis are one node of the graph, whatever their number; one matmul computes the products of the
inputs for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from glassgrad import Tensor
from glassgrad.base.errors import InputError
from glassgrad.onnx.operators import operator
from glassgrad.tensor.recurrence import states_of_steps

Activation = Callable[[Tensor], Tensor]


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """Return an activation by its name in recurrent operators."""
    a, b = (lambda default: default if alpha is None else alpha), (lambda default: default if beta is None else beta)
    table: dict[str, Activation] = {
        "sigmoid": Tensor.sigmoid, "tanh": Tensor.tanh, "relu": Tensor.relu, "softsign": Tensor.softsign,
        "softplus": Tensor.softplus, "leakyrelu": lambda x: x.leaky_relu(a(0.01)), "elu": lambda x: x.elu(a(1.0)),
        "thresholdedrelu": lambda x: (x > a(1.0)).where(x, 0), "affine": lambda x: x * a(1.0) + b(0.0),
        "hardsigmoid": lambda x: (x * a(0.2) + b(0.5)).clamp(0, 1),
        "scaledtanh": lambda x: (x * b(1.0)).tanh() * a(1.0)}
    if name.lower() not in table:
        raise InputError("a recurrent operator has an unknown activation", given=name, expected=", ".join(table),
                         fix="export the model with another activation")
    return table[name.lower()]


class Direction(NamedTuple):
    """The values that a step of one direction uses."""
    inputs: Tensor                      # (time, batch, gates * hidden): products of the inputs, with biases
    recurrent: Tensor                   # (gates * hidden, hidden)
    bias: Tensor | None                 # of the recurrent products, if it is not added to the inputs
    peepholes: Tensor | None            # (3 * hidden)
    functions: list[Activation]
    clip: Callable[[Tensor], Tensor]


Step = Callable[[Direction, Tensor, "tuple[Tensor, ...]"], "tuple[Tensor, ...]"]


def run(step: Step, gates: int, names: Sequence[str], x: Tensor, w: Tensor, r: Tensor, b: Tensor | None,
        lengths: Tensor | None, initial: Sequence[Tensor | None], peepholes: Tensor | None, options: dict[str, Any],
        separate_bias: bool = False) -> tuple[Tensor, ...]:
    """Return all states of all directions (time, directions, batch, hidden), and the last ones (directions, batch,
    hidden)."""
    layout, direction = options["layout"], options["direction"]
    if layout:
        x, initial = x.transpose(0, 1), [s if s is None else s.transpose(0, 1) for s in initial]
    batch, hidden, directions = x.shape[1], r.shape[-1], w.shape[0]
    functions = activations(options, names, directions)
    limit = options["clip"]
    clip: Callable[[Tensor], Tensor] = (lambda t: t) if limit is None else (lambda t: t.clamp(-limit, limit))
    sides = []
    for d in range(directions):
        products = x.matmul(w[d].T)
        bias = None
        if b is not None:
            parts = b[d, :gates * hidden], b[d, gates * hidden:]
            bias = parts[1] if separate_bias else None
            products = products + (parts[0] if separate_bias else parts[0] + parts[1])
        part = Direction(products, r[d], bias, None if peepholes is None else peepholes[d], functions[d], clip)
        zeros = Tensor.zeros(batch, hidden, dtype=x.dtype, device=x.device)
        state = tuple(zeros if s is None else s[d] for s in initial)
        backward = direction == "reverse" or d == 1
        sides.append(states(step, part, state, lengths, backward))
    y, *last = [Tensor.stack(*values, dim=axis) for axis, values in zip((1, *[0] * len(initial)), zip(*sides))]
    return (y.permute(2, 0, 1, 3), *[s.transpose(0, 1) for s in last]) if layout else (y, *last)


def states(step: Step, part: Direction, start: tuple[Tensor, ...], lengths: Tensor | None, backward: bool
           ) -> tuple[Tensor, ...]:
    """Return one direction's outputs, and its last state. A sequence that has ended keeps its state, and its outputs
    are zeros."""
    end = 0 if backward else -1
    if lengths is None:
        found = states_of_steps(lambda state, x: step(part, x, state), start, [part.inputs], backward)
        return found[0], *[values[end] for values in found]
    time = Tensor.arange(part.inputs.shape[0], device=part.inputs.device).reshape(-1, 1, 1)
    going = (time < lengths.reshape(1, -1, 1))                               # (time, batch, 1)

    def kept(state: tuple[Tensor, ...], x: Tensor, on: Tensor) -> tuple[Tensor, ...]:
        return tuple(on.where(new, old) for new, old in zip(step(part, x, state), state))

    found = states_of_steps(kept, start, [part.inputs, going], backward)
    return going.where(found[0], 0), *[values[end] for values in found]


def activations(options: dict[str, Any], names: Sequence[str], directions: int) -> list[list[Activation]]:
    """Return the functions of each direction; a node has one list for all, and parameters for those that take some."""
    given = list(options["activations"] or list(names) * directions)
    alphas, betas = iter(options["activation_alpha"] or ()), iter(options["activation_beta"] or ())
    taking_alpha = ("leakyrelu", "elu", "thresholdedrelu", "affine", "hardsigmoid", "scaledtanh")
    made = [activation(name, next(alphas, None) if name.lower() in taking_alpha else None,
                       next(betas, None) if name.lower() in ("affine", "hardsigmoid", "scaledtanh") else None)
            for name in given]
    return [made[len(names) * d:len(names) * (d + 1)] for d in range(directions)]


def rnn_step(part: Direction, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return part.functions[0](part.clip(x + state[0].matmul(part.recurrent.T))),


def gru_step(part: Direction, x: Tensor, state: tuple[Tensor, ...], after: bool = False) -> tuple[Tensor, ...]:
    """h' = (1 - z) g(x + r h) + z h. The reset gate r multiplies h before the product with its matrix, or
    `after` it."""
    h, n = state[0], state[0].shape[-1]
    f, g = part.functions
    weights = part.recurrent.T
    bias = (0.0, 0.0) if part.bias is None else (part.bias[:2 * n], part.bias[2 * n:])
    zr = f(part.clip(x[:, :2 * n] + h.matmul(weights[:, :2 * n]) + bias[0]))
    z, r = zr[:, :n], zr[:, n:]
    last = weights[:, 2 * n:]
    product = r * (h.matmul(last) + bias[1]) if after else (r * h).matmul(last) + bias[1]
    return (1 - z) * g(part.clip(x[:, 2 * n:] + product)) + z * h,


def lstm_step(part: Direction, x: Tensor, state: tuple[Tensor, ...], input_forget: bool = False) -> tuple[Tensor, ...]:
    """c' = f c + i g, h' = o h(c')."""
    h, c = state
    n = h.shape[-1]
    f, g, squash = part.functions
    i, o, forget, cell = (x + h.matmul(part.recurrent.T)).split(n, dim=1)
    p = part.peepholes
    if p is not None:
        i, forget = i + p[:n] * c, forget + p[2 * n:] * c
    i, cell = f(part.clip(i)), g(part.clip(cell))
    forget = 1 - i if input_forget else f(part.clip(forget))
    new = forget * c + i * cell
    o = f(part.clip(o if p is None else o + p[n:2 * n] * new))
    return o * squash(new), new


@operator("RNN")
def rnn(x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
        initial_h: Tensor | None = None, *, activation_alpha: Any = None, activation_beta: Any = None,
        activations: Any = None, clip: float | None = None, direction: str = "forward", hidden_size: int = 0,
        layout: int = 0, output_sequence: int = 0) -> Any:
    return run(rnn_step, 1, ["Tanh"], x, w, r, b, lengths, [initial_h], None, dict(locals()))


@operator("GRU")
def gru(x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
        initial_h: Tensor | None = None, *, activation_alpha: Any = None, activation_beta: Any = None,
        activations: Any = None, clip: float | None = None, direction: str = "forward", hidden_size: int = 0,
        layout: int = 0, linear_before_reset: int = 0, output_sequence: int = 0) -> Any:
    def step(part: Direction, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return gru_step(part, inputs, state, after=bool(linear_before_reset))
    return run(step, 3, ["Sigmoid", "Tanh"], x, w, r, b, lengths, [initial_h], None, dict(locals()), separate_bias=True)


@operator("LSTM")
def lstm(x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
         initial_h: Tensor | None = None, initial_c: Tensor | None = None, peepholes: Tensor | None = None, *,
         activation_alpha: Any = None, activation_beta: Any = None, activations: Any = None, clip: float | None = None,
         direction: str = "forward", hidden_size: int = 0, input_forget: int = 0, layout: int = 0,
         output_sequence: int = 0) -> Any:
    def step(part: Direction, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return lstm_step(part, inputs, state, input_forget=bool(input_forget))
    initial = [initial_h, initial_c]
    return run(step, 4, ["Sigmoid", "Tanh", "Tanh"], x, w, r, b, lengths, initial, peepholes, dict(locals()))
