"""Add the methods that only tinygrad has: graphs as functions, schedules by hand, several devices, names of older
releases. In, out: tensors; schedules.

A tensor computed from placeholders is a function: `call` replaces them by other tensors. A tensor lives on one device,
so methods that spread one over several take one device. Methods that need hardware or services that are not available
here say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from glassgrad.base.errors import DeviceError, GlassgradError, InputError, ShapeError
from glassgrad.compiler.graph import Param, UOp, dtypes, ops as o, sizes_now, substitute, toposort
from glassgrad.compiler.graph.ops import Kind, Op
from glassgrad.tensor import realize_and_read as running
from glassgrad.tensor.autograd.custom_gradient import own_gradient
from glassgrad.tensor.formulas.arithmetic import binary, where
from glassgrad.tensor.methods import REQUIRED, Self, TensorBase, arguments, cannot_take, of_kind, spelled

TIMEOUT = 30.0         # seconds without a byte from a server


class TinygradNamesMixin(TensorBase):
    """Methods that only tinygrad has."""
    __slots__ = ()
    no_grad = False    # tinygrad's older switch has no effect: gradients are computed only where `backward` needs them

    # -- functions -------------------------------------------------------------------------------------------
    def as_param(self, slot: int) -> Self:
        """A placeholder of this tensor's shape and type, for `call`: it has no value.

        >>> Tensor([1.0, 2.0]).as_param(0).shape
        (2,)
        """
        slot, = arguments("as_param", slot=slot)
        return self._with(UOp(o.PARAM, self.dtype, (), Param(slot, self.shape, False, self.device)))

    def call(self, *lst: Self, fxn: Self | UOp, grad_fxn: Callable[..., Any] | None = None) -> Self:
        """Call a function, given as a tensor computed from placeholders, with this tensor and others.
        `grad_fxn(gradient, call)` returns the gradients as nodes, one for each argument; `call.src[1:]` are the
        arguments.

        >>> a, b = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
        >>> a.call(b, fxn=a.as_param(0) * b.as_param(1) + 1).tolist()
        [4.0, 9.0]
        """
        of_kind("list[Tensor]", "call", lst=lst)
        body = fxn.uop if isinstance(fxn, TensorBase) else fxn
        if not isinstance(body, UOp):
            raise cannot_take("call", "fxn", fxn, "a Tensor or a node computed from as_param()")
        if grad_fxn is not None:
            of_kind("Callable", "call", grad_fxn=grad_fxn)
        given = (self, *lst)
        exchanged: dict[UOp, UOp] = {}
        for node in toposort([body]):
            if node.op is o.PARAM and isinstance(node.arg, Param) and not node.arg.scalar:
                slot = node.arg.slot
                if slot >= len(given):
                    raise InputError("the function needs more tensors than it is given",
                                     given=f"{len(given)} tensors", expected=f"one for as_param({slot})",
                                     fix="pass a tensor for each placeholder")
                if given[slot].shape != node.shape or given[slot].dtype is not node.dtype:
                    raise ShapeError("an argument does not fit its placeholder",
                                     given=f"{given[slot].dtype.name} {given[slot].shape} for as_param({slot})",
                                     expected=f"{node.dtype.name} {node.shape}", fix="reshape or cast it")
                exchanged[node] = given[slot].uop
        value = substitute([body], exchanged)[0]
        if grad_fxn is not None:
            nodes = tuple(t.uop for t in given)

            def backward(gradient: UOp, _result: UOp, *arguments: UOp) -> Any:
                return tuple(grad_fxn(gradient, SimpleNamespace(src=(body, *arguments))))
            value = own_gradient(value, nodes, backward)
        return self._with(value)

    def callify(self, *lst: Self) -> Self:
        """This tensor itself. (In tinygrad, what it and others wait for becomes one call. Here everything that is
        realized together is scheduled together.)

        >>> Tensor([1]).callify().tolist()
        [1]
        """
        return self

    def custom_kernel(self, *lst: Self, fxn: Callable[..., Any], grad_fxn: Callable[..., Any] | None = None
                      ) -> list[Self]:
        """A kernel of your own over these tensors. Each is returned as the kernel left it. `fxn` describes the kernel
        on placeholders: elements are read and written by index, inside loops. For C source see `c_kernel`.

        >>> from glassgrad.tensor.kernels.placeholder_kernel import loop
        >>> def add_one(out, x):
        ...     i = loop(x.numel())
        ...     return out[i].store(x[i] + 1).end(i).sink()
        >>> Tensor.empty(3).custom_kernel(Tensor([1.0, 2.0, 3.0]), fxn=add_one)[0].tolist()
        [2.0, 3.0, 4.0]
        """
        of_kind("list[Tensor]", "custom_kernel", lst=lst)
        of_kind("Callable", "custom_kernel", fxn=fxn)
        from glassgrad.tensor.kernels.placeholder_kernel import \
            run_kernel  # a C compiler and processes, which few ever need
        return run_kernel((self, *lst), fxn, grad_fxn)     # type: ignore[return-value,arg-type]

    # -- schedules -------------------------------------------------------------------------------------------
    def linear_with_vars(self, *lst: Self) -> tuple[running.Planned, dict[str, int]]:
        """The schedule of these tensors, and the values of the variables in their shapes, by name.

        >>> kernels, values = (Tensor([1, 2]) + 1).linear_with_vars()
        >>> len(kernels), values
        (1, {})
        """
        of_kind("list[Tensor]", "linear_with_vars", lst=lst)
        tensors = (self, *lst)
        symbols = {symbol for t in tensors for node in toposort([t.uop]) for symbol in node.symbols}
        planned = running.schedule([t.uop for t in tensors], self.device)
        return planned, {symbol.name: int(symbol.value or 0) for symbol in sorted(symbols)}

    def schedule_linear(self, *lst: Self) -> running.Planned:
        """The schedule of these tensors; the same as `schedule`.

        >>> len((Tensor([1, 2]) + 1).schedule_linear())
        1
        """
        return self.linear_with_vars(*lst)[0]

    schedule_with_vars = linear_with_vars          # its older name

    def kernelize(self, *lst: Self) -> Self:
        """This tensor itself. (In tinygrad 0.11 kernels are chosen now. Here they are chosen when it is realized.)

        >>> Tensor([1]).kernelize().tolist()
        [1]
        """
        return self

    def fuse(self) -> Self:
        """This tensor itself. (In tinygrad 0.11 this requests one kernel. Here the scheduler decides what to fuse.)

        >>> Tensor([1]).fuse().tolist()
        [1]
        """
        return self

    def contiguous_backward(self) -> Self:
        """The same values, whose gradient is stored in memory when it passes here. (Kernels are chosen well without
        it.)

        >>> Tensor([1, 2]).contiguous_backward().tolist()
        [1, 2]
        """
        return self

    def max_numel(self) -> int:
        """The number of elements, where every symbolic size is at its largest.

        >>> Tensor([1, 2]).max_numel()
        2
        """
        return math.prod(self.max_shape)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape, where every symbolic size is at its largest.

        >>> Tensor([1, 2]).max_shape
        (2,)
        """
        return tuple(self.shape)

    @property
    def is_param(self) -> bool:
        """Whether a gradient is wanted: `requires_grad`, which can be set too.

        >>> Tensor([1.0], requires_grad=True).is_param
        True
        """
        return bool(self.requires_grad)

    @is_param.setter
    def is_param(self, is_param: bool) -> None:
        self.requires_grad = is_param

    def is_param_(self, is_param: bool = True) -> Self:
        """Ask for a gradient: `requires_grad_`.

        >>> Tensor([1.0]).is_param_().requires_grad
        True
        """
        return self.requires_grad_(is_param)

    def alu(self, op: Op = REQUIRED, *src: Self, **spelling: Any) -> Self:
        """One operation of the graph, by its name, on this and other tensors of the same shape and type.

        >>> from glassgrad.compiler.graph.ops import Ops
        >>> Tensor([1, 2]).alu(Ops.ADD, Tensor([3, 4])).tolist()
        [4, 6]
        """
        op, = spelled("alu", spelling, op=op)
        if not isinstance(op, Op) or op.kind not in (Kind.UNARY, Kind.BINARY, Kind.TERNARY):
            raise InputError("alu takes an operation on elements", given=repr(op),
                             expected="an op of one, two or three operands, such as Ops.ADD",
                             fix="write the operation itself: x + y")
        if op.kind is Kind.TERNARY:
            return self._with(where(self.uop, *(t.uop for t in src)), *src)
        return self._with(self.uop.alu(op) if op.kind is Kind.UNARY else binary(op, self.uop, src[0].uop), *src)

    # -- making ----------------------------------------------------------------------------------------------
    @classmethod
    def from_uop(cls, y: UOp, **kwargs: Any) -> Self:
        """A tensor of a graph's node.

        >>> Tensor.from_uop(Tensor([1, 2]).uop).tolist()
        [1, 2]
        """
        return cls._made_of(y, **kwargs)

    @classmethod
    def unique_const(cls, fill_value: Any, **kwargs: Any) -> Self:
        """A number as a tensor without axes, which is a leaf of its own.

        >>> Tensor.unique_const(2.5).item()
        2.5
        """
        return cls.full((), fill_value, **kwargs)  # type: ignore[attr-defined]

    @classmethod
    def random_bits(cls, key: Self, counter: Self, num: int) -> Self:
        """Random words of 32 bits: Threefry under a key of two words, from a counter of two words (low, high) on. The
        key is scrambled with the counter. Words then come in pairs: one half of the row is made of the first words, the
        other of the second.

        >>> zeros = Tensor.zeros(2, dtype=dtypes.uint32)
        >>> Tensor.random_bits(zeros, zeros, 4).dtype
        dtypes.uint32
        """
        key, counter, num = arguments("random_bits", key=key, counter=counter, num=num)
        if num <= 0:
            return counter[0:0]  # type: ignore[index]
        wide = dtypes.uint64
        packed = [(pair[1].cast(wide) << 32) | pair[0].cast(wide) for pair in (counter, key)]  # type: ignore[index]
        seed = packed[0].reshape(1).threefry(packed[1].reshape(1))
        half = (num + 1) // 2
        low = cls.arange(half, dtype=dtypes.uint32, device=key.device)  # type: ignore[attr-defined]
        drawn = (((low + half).cast(wide) << 32) | low.cast(wide)).threefry(seed.expand(half))
        return drawn.cast(dtypes.uint32).cat((drawn >> 32).cast(dtypes.uint32))[:num]

    @classmethod
    def from_url(cls, url: str, gunzip: bool = False, **kwargs: Any) -> Self:
        """The bytes at a URL (of the network, or file:) as uint8; `gunzip` unpacks them.

        >>> import pathlib, tempfile
        >>> place = pathlib.Path(tempfile.mkdtemp()) / "three"
        >>> _ = place.write_bytes(b"abc")
        >>> Tensor.from_url(place.as_uri()).tolist()
        [97, 98, 99]
        """
        url, gunzip = arguments("from_url", url=url, gunzip=gunzip)
        import gzip  # imported here because few programs need it, and network modules are large
        import urllib.error
        import urllib.request
        try:
            if "://" not in url:
                raise ValueError("it has no scheme, such as https://")
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                data = answer.read()
            return cls._made_of(gzip.decompress(data) if gunzip else data, **kwargs)
        except (ValueError, EOFError, OSError) as problem:
            if isinstance(problem, GlassgradError):
                raise
            code = f"the server answered {problem.code}" if isinstance(problem, urllib.error.HTTPError) else \
                str(getattr(problem, "reason", problem))
            raise InputError("this address gave no data", given=f"{url!r}: {code}",
                             expected="an address that answers" + (" with gzip data" if gunzip else ""),
                             fix="check the address and the network, or read a file: Tensor(open(name, 'rb').read())"
                             ) from problem

    # -- elsewhere -------------------------------------------------------------------------------------------
    llvm_bf16_cast = TensorBase.cast          # in older tinygrad a way around compilers without bfloat16

    def decode_hevc_frame(self, frame_pos: Any, shape: Sequence[int], state: Self,
                          ref_frames: Sequence[Self] | None = None) -> Self:
        """Not available: tinygrad has the video hardware of NVIDIA cards do this.

        >>> try: Tensor([0]).decode_hevc_frame(None, (1,), Tensor([0]))
        ... except DeviceError as problem: print(problem.what)
        no device here decodes video
        """
        raise DeviceError("no device here decodes video", given=f"an HEVC frame of shape {shape}",
                          expected="a device with a video decoder",
                          fix="decode the file with PyAV or ffmpeg, and make tensors of its frames")

    def fs_load(self, size: int) -> Self:
        """Not available: tinygrad's own storage service.

        >>> try: Tensor([0]).fs_load(1)
        ... except DeviceError as problem: print(problem.what)
        there is no TINYFS here
        """
        raise _no_storage(f"{size} bytes to load")

    def fs_store(self) -> Self:
        """Not available: tinygrad's own storage service.

        >>> try: Tensor([0]).fs_store()
        ... except DeviceError as problem: print(problem.what)
        there is no TINYFS here
        """
        raise _no_storage(f"{sizes_now(self.shape)} to store")

    # -- devices ---------------------------------------------------------------------------------------------
    def cpu(self) -> Self:
        """The values on the CPU.

        >>> Tensor([1]).cpu().device
        'CPU'
        """
        return self.to("CPU")

    def shard(self, devices: Sequence[str], axis: int | None = None, splits: Any = None) -> Self:
        """The tensor spread over devices. Here a tensor lives on one device, so all of them must be the same.

        >>> Tensor([1, 2]).shard(("CPU", "CPU"), axis=0).tolist()
        [1, 2]
        """
        names = {running.canonical_device(d) for d in of_kind("list", "shard", devices=devices)}
        if len(names) != 1:
            raise DeviceError("a tensor lives on one device",
                              given=f"shard over {', '.join(map(str, devices))}", expected="one device name",
                              fix="keep a part per device yourself: x.chunk(n), then .to(device)")
        return self.to(names.pop())

    def shard_(self, devices: Sequence[str], axis: int | None = None, splits: Any = None) -> Self:
        """`shard` of this tensor itself.

        >>> Tensor([1, 2]).shard_(("CPU",)).tolist()
        [1, 2]
        """
        self.to_(self.shard(devices, axis).device)
        return self

    def shard_like(self, other: Self = REQUIRED, **spelling: Any) -> Self:
        """This tensor on the device of the other.

        >>> Tensor([1, 2]).shard_like(Tensor([3])).tolist()
        [1, 2]
        """
        other, = spelled("shard_like", spelling, other=other)
        of_kind("Self", "shard_like", other=other)
        return self.to(other.device)


def _no_storage(given: str) -> DeviceError:
    return DeviceError("there is no TINYFS here", given=given, expected="a file",
                       fix="use nn.state.safe_save and safe_load")
