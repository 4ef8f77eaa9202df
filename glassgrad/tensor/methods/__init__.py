"""Export the mixins of a tensor's methods, one for each theme, and what mixins use of the base class and the checks."""

from glassgrad.tensor.broadcast import (VERBS, Axis, broadcast_shape, broadcasts_to, number, one_row, plain_number,
                                        resolve_axes, resolve_axis, shape_from, size_from, whole, working_axis)
from glassgrad.tensor.checks import (REQUIRED, arguments, broadcast_to, cannot_take, choice, computed, fit_together,
                                     fraction, index_fits, integer_index, of_kind, options, several, sizes, spelled,
                                     two_axes)
from glassgrad.tensor.tensor_base import Found, Operand, Self, TensorBase
