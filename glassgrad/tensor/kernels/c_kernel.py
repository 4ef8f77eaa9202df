"""Make an operation of a kernel in C or CUDA. In: its source, and a backward function. Out: a function of tensors.

    double_it = c_kernel('''void double_it(float *out, const float *x, long long n) {
        for (long long i = 0; i < n; i++) out[i] = 2 * x[i];
    }''', "double_it", backward=lambda g, y, x: g * 2)

The C function gets a pointer to the result, then the arguments in order (for a tensor a pointer to its elements row by
row, for a number the value in its declared type), then the number of the result's elements. Tensors must have the
declared types. The source is compiled by the system's C compiler when it is first used. A call runs at once: our
compiler cannot see into it, so nothing is fused with it. Inside a jitted function each replay launches it again.

On the device CUDA the source is CUDA, and the function is a kernel. It is launched with a thread for each element of
the result, in blocks of 256; the last block may have idle threads:

    extern "C" __global__ void double_it(float *out, const float *x, long long n) {
        long long i = blockIdx.x * 256ll + threadIdx.x;
        if (i < n) out[i] = 2 * x[i];
    }
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from glassgrad.base.errors import DeviceError, GradientError, InputError
from glassgrad.compiler.graph import DType, UOp, dtype_by_name
from glassgrad.engine.host_launches import UserCall
from glassgrad.engine.realize import run_call
from glassgrad.runtime.cpu.c_compiler import find_compiler
from glassgrad.runtime.devices import Device
from glassgrad.runtime.gpu.gpu_device import GpuDevice, Rejected
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.autograd.function import custom_gradient
from glassgrad.tensor.checks import checked, sizes
from glassgrad.tensor.kernels.c_signature import check_arguments, check_kinds, check_result, number_for, parameters_of
from glassgrad.tensor.tensor_base import TensorBase

Shape = Sequence[int]
LANGUAGES = {"cuda": 'CUDA, with extern "C" __global__ before the kernel',
             "hip": 'HIP, with extern "C" __global__ before the kernel',
             "metal": "Metal, with `kernel` before it and [[buffer(0)]], [[buffer(1)]], .. after its arguments"}


def c_kernel(source: str, name: str, backward: Callable[..., Any] | None = None,
             shape: Shape | Callable[..., Shape] | None = None,
             dtype: DType | str | None = None) -> Callable[..., TensorBase]:
    """A function of tensors that runs C source. The result has the first tensor's shape, unless `shape` (or a function
    of the arguments) says otherwise, and the type that the function declares, or `dtype`. `backward(gradient, result,
    *tensors)` returns the gradients; without it, asking for one is an error.

    >>> add_one = c_kernel('''void add_one(float *out, const float *x, long long n) {
    ...     for (long long i = 0; i < n; i++) out[i] = x[i] + 1;
    ... }''', "add_one", backward=lambda g, y, x: g)
    >>> add_one(Tensor([1.0, 2.0])).tolist()
    [2.0, 3.0]
    """
    for argument, value in (("source", source), ("name", name)):
        checked("c_kernel", "str", argument, value, "glassgrad")
    declared = parameters_of(source, name)

    def run(*args: Any) -> TensorBase:
        tensors = [a for a in args if isinstance(a, TensorBase)]
        if not tensors:
            raise InputError("a C kernel needs a tensor", given=f"{name}{args!r}",
                             expected="at least one Tensor", fix="pass its values as a tensor: Tensor([1.0])")
        first = tensors[0]
        function = _function(source, name, first.device, tuple(not isinstance(a, TensorBase) for a in args))
        kind = first.dtype
        check_kinds(name, args)
        if declared is not None:
            check_arguments(name, declared, args)
            kind = declared[0].dtype or kind
        parameters = declared if declared is not None else [None] * (len(args) + 2)
        numbers = [None if isinstance(a, TensorBase) else number_for(name, p, a) for p, a in zip(parameters[1:], args)]
        if dtype is not None:
            kind = dtype_by_name(dtype)
            if declared is not None:
                check_result(name, declared[0], kind)
        result_shape = first.shape
        if shape is not None:
            result_shape = sizes((shape(*args) if callable(shape) else shape,), f"the C kernel {name}")
        elements = functools.reduce(lambda n, m: n * m, result_shape, 1)
        count = number_for(name, parameters[-1], elements)

        def launch(addresses: Sequence[int]) -> None:
            pointers = iter(map(ctypes.c_void_p, addresses))
            function(next(pointers), *[next(pointers) if n is None else n for n in numbers], count)

        key = (source, name, tuple(None if isinstance(a, TensorBase) else a for a in args))
        [value] = launch_on(tensors, UserCall(name, key, launch), [(result_shape, kind)])
        return first._with(value if backward is not None else without_gradient(value, name, tensors))

    run.__name__, run.__doc__ = name, f"The C kernel {name}."
    return custom_gradient(backward)(run) if backward is not None else run


def launch_on(tensors: Sequence[TensorBase], call: UserCall, results: Sequence[tuple[Any, DType]]) -> list[UOp]:
    """Compute the tensors, and call a function with the addresses of its results, followed by those of the tensors."""
    device = tensors[0].device
    nodes = running.realize([t.uop.contiguous() for t in tensors], device)
    return run_call(call, results, [running.value_of(node, device) for node in nodes], device)


@dataclass(frozen=True)
class _NoGradient:
    """The backward function of a kernel that was given none."""
    name: str

    def __call__(self, *_: UOp) -> Any:
        raise GradientError(f"the kernel {self.name} has no gradient", expected="a kernel with a backward",
                            given=f"a gradient that has to pass through {self.name}",
                            fix=f'give it one: c_kernel(source, "{self.name}", backward=lambda g, y, x: ...); or cut '
                                f"the gradient off: {self.name}(x.detach())")


def without_gradient(value: UOp, name: str, tensors: Sequence[TensorBase]) -> UOp:
    """Return a value for which asking for a gradient of its inputs is an error."""
    inputs = tuple(t.uop for t in tensors if t.dtype.kind == "f")
    return own_gradient(value, inputs, _NoGradient(name)) if inputs and value.dtype.kind == "f" else value


def _function(source: str, name: str, device_name: str, numbers: tuple[bool, ...]) -> Callable[..., Any]:
    """Compile the source; return a function of ctypes values: the result, the arguments, the number of elements."""
    device = Device[device_name]
    if device.memory.on_host:
        return load(source, name)
    if not isinstance(device, GpuDevice) or device.dialect.by_handle:
        raise DeviceError("a kernel of your own runs on the processor or with CUDA",
                          given=f"a tensor on {device_name}", expected="a device whose memory has addresses",
                          fix='move it: x.to("CPU")')
    return _gpu_function(device, source, name, (False, *numbers, True))


@functools.lru_cache(maxsize=256)
def _gpu_function(device: GpuDevice, source: str, name: str, numbers: tuple[bool, ...]) -> Callable[..., Any]:
    try:
        kernel = device.user_kernel(source, name, numbers)
    except Rejected as error:
        raise InputError(f"the source of {name} does not compile", given=str(error).strip(), fix="correct the source",
                         expected=LANGUAGES[device.dialect.name]) from None

    def call(*values: Any) -> None:
        kernel([ctypes.addressof(v) if number else v.value for v, number in zip(values, numbers)], values[-1].value)
    return call


@functools.lru_cache(maxsize=256)
def load(source: str, name: str) -> Callable[..., Any]:
    """Compile source to a shared library and load a function from it."""
    command = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "kernel.so")
        done = subprocess.run([*command, "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-lm"],
                              input=source.encode(), capture_output=True)
        if done.returncode:
            raise InputError(f"the C source of {name} does not compile",
                             given=done.stderr.decode(errors="replace").strip(),
                             expected=f"C that {command[0]} takes", fix="correct the source")
        loaded = ctypes.CDLL(library)
    try:
        function = loaded[name]
    except AttributeError:
        raise InputError("the C source has no such function", given=f"name={name!r}",
                         expected=f"a function void {name}(...) that is not static", fix="check the name") from None
    function.restype = None
    return function  # type: ignore[no-any-return]
