"""A kernel of your own, in C or CUDA, as an operation. In: its source, and a backward. Out: a function of tensors.

    double_it = c_kernel('''void double_it(float *out, const float *x, long long n) {
        for (long long i = 0; i < n; i++) out[i] = 2 * x[i];
    }''', "double_it", backward=lambda g, y, x: g * 2)

The function gets a pointer to the result, then the arguments in order (a tensor: a pointer to its elements row by row;
an int: long long; a float: double), then the number of the result's elements. It is compiled when first used, by the
system's C compiler, and runs at once: the compiler cannot see into it, so nothing is fused with it.

On the device CUDA the source is CUDA, and the function a kernel that is started with a thread for each element of the
result, in groups of 256, the last of which has some to spare:

    extern "C" __global__ void double_it(float *out, const float *x, long long n) {
        long long i = blockIdx.x * 256ll + threadIdx.x;
        if (i < n) out[i] = 2 * x[i];
    }
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from glassgrad.base.errors import DeviceError, InputError
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.graph.dtype import DType, dtype_by_name
from glassgrad.compiler.graph.uop import UOp
from glassgrad.engine.buffer import Buffer
from glassgrad.engine.capture import refuse_reading
from glassgrad.runtime.cpu.c_compiler import find_compiler
from glassgrad.runtime.devices import Device
from glassgrad.runtime.gpu.gpu_device import GpuDevice, Rejected
from glassgrad.tensor import evaluate as running
from glassgrad.tensor.autograd.function import custom_gradient
from glassgrad.tensor.base import TensorBase

__all__ = ["c_kernel", "load"]

Shape = Sequence[int]


def c_kernel(
    source: str,
    name: str,
    backward: Callable[..., Any] | None = None,
    shape: Shape | Callable[..., Shape] | None = None,
    dtype: DType | str | None = None,
) -> Callable[..., TensorBase]:
    """A function of tensors that runs C source. The result has the first tensor's shape and dtype, unless `shape` (or a
    function of the arguments) and `dtype` say otherwise; `backward(gradient, result, *tensors)` gives the gradients.

    >>> add_one = c_kernel('''void add_one(float *out, const float *x, long long n) {
    ...     for (long long i = 0; i < n; i++) out[i] = x[i] + 1;
    ... }''', "add_one", backward=lambda g, y, x: g)
    >>> add_one(Tensor([1.0, 2.0])).tolist()
    [2.0, 3.0]
    """
    compiled: dict[str, Any] = {}

    def run(*args: Any) -> TensorBase:
        tensors = [a for a in args if isinstance(a, TensorBase)]
        if not tensors:
            raise InputError(
                "a C kernel needs a tensor", given=f"{name}{args!r}", expected="at least one Tensor",
                fix="pass its values as a tensor: Tensor([1.0])"
            )
        refuse_reading(f"the C kernel {name}, which runs outside the captured kernels,")
        place = tensors[0].device
        if place not in compiled:
            compiled[place] = _function(source, name, place, args)
        sizes = tensors[0].shape if shape is None else tuple(shape(*args) if callable(shape) else shape)
        kind = tensors[0].dtype if dtype is None else dtype_by_name(dtype)
        result = Buffer(sizes, kind, place)
        nodes = running.realize([t.uop.contiguous() for t in tensors], place)
        buffers = iter([running.value_of(n, place) for n in nodes])
        given = [_argument(a, buffers, name) for a in args]
        if result.nbytes:
            compiled[place](ctypes.c_void_p(result.address), *given, ctypes.c_longlong(result.nbytes // kind.itemsize))
        return tensors[0]._with(UOp(o.BUFFER, kind, (), result))

    run.__name__, run.__doc__ = name, f"The C kernel {name}."
    return custom_gradient(backward)(run) if backward is not None else run


def _function(source: str, name: str, place: str, args: Sequence[Any]) -> Callable[..., Any]:
    """The compiled source, to be called with ctypes values: the result, the arguments, the number of elements."""
    device = Device[place]
    if device.memory.on_host:
        return load(source, name)  # type: ignore[no-any-return]
    if not isinstance(device, GpuDevice) or device.dialect.by_handle:
        raise DeviceError("a kernel of your own runs on the processor or with CUDA", given=f"a tensor on {place}",
                          expected="a device whose memory has addresses", fix='move it: x.to("CPU")')
    numbers = [False, *[not isinstance(a, TensorBase) for a in args], True]
    try:
        kernel = device.user_kernel(source, name, numbers)
    except Rejected as error:
        raise InputError(f"the source of {name} does not compile", given=str(error).strip(), fix="correct the source",
                         expected='CUDA, with extern "C" __global__ before the kernel') from None

    def call(*values: Any) -> None:
        kernel([ctypes.addressof(v) if number else v.value for v, number in zip(values, numbers)], values[-1].value)
    return call


def _argument(value: Any, buffers: Any, name: str) -> Any:
    if isinstance(value, TensorBase):
        return ctypes.c_void_p(next(buffers).arg.address)
    if isinstance(value, (bool, int)):
        return ctypes.c_longlong(int(value))
    if isinstance(value, float):
        return ctypes.c_double(value)
    raise InputError(
        "a C kernel takes tensors and numbers",
        given=f"{value!r} of type {type(value).__name__} for {name}",
        expected="a Tensor, an int or a float",
        fix="make it a tensor, or a number with float() or int()",
    )


def load(source: str, name: str) -> Any:
    """Compile to a shared library and take the function from it."""
    command = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "kernel.so")
        done = subprocess.run([*command, "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-lm"],
                              input=source.encode(), capture_output=True)
        if done.returncode:
            raise InputError(
                f"the C source of {name} does not compile",
                given=done.stderr.decode(errors="replace").strip(),
                expected=f"C that {command[0]} takes",
                fix="correct the source",
            )
        loaded = ctypes.CDLL(library)
    try:
        function = loaded[name]
    except AttributeError:
        raise InputError("the C source has no such function", given=f"name={name!r}",
                         expected=f"a function void {name}(...) that is not static", fix="check the name") from None
    function.restype = None
    return function
