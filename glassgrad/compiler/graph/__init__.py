"""The names of the graph package that later stages use. Files of this folder import each other directly."""

from glassgrad.compiler.graph import ops as ops
from glassgrad.compiler.graph.dtype import DType, dtype_by_name, dtypes, promote
from glassgrad.compiler.graph.node import substitute, toposort
from glassgrad.compiler.graph.op_arguments import Axes, Cell, Iota, OwnGradient, Param, RandomBits, Scan, Scatter, Shape
from glassgrad.compiler.graph.symbolic import Length, Size, sizes_now, upper_bound
from glassgrad.compiler.graph.uop import UOp, const, full, identity
