"""Compute on nodes: a tensor's methods call these functions. Does not know tensors.

The formulas that others are made of are exported here: arithmetic, movement, reductions and indexing.
"""

from glassgrad.tensor.formulas.arithmetic import (absolute, add, as_float, as_node, at_most, binary, both, broadcast,
                                                  ceil, clamp, divide, equal, floor, in_accumulator, is_infinite,
                                                  is_nan, lerp, less, logaddexp, maximum, minimum, mul, not_equal,
                                                  power, rounded_once, scaled, sign, square, sub, where)
from glassgrad.tensor.formulas.indexing import (argsort, choose, gather, gather_known, lookup, put, ranked,
                                                replace_part, rows_of, scatter, scatter_reduce, scatter_slices,
                                                scatter_targets, sort, take, topk, true_indices)
from glassgrad.tensor.formulas.movement import (above_diagonal, along, at, cat, counting, diagonal, diagonal_matrix,
                                                every, eye, flatten, halves, joined, linear_indices, matrix_transpose,
                                                movedim, pad_axis, pad_constant, part, repeat_interleave, roll, squeeze,
                                                stack, tril, triu, unsqueeze)
from glassgrad.tensor.formulas.reductions import (all_true, any_true, arg_extreme, count, largest, mean, norm, product,
                                                  running, smallest, sum_dtype, total)
