"""Map PyTorch's modules to those here. In: nothing. Out: `MODULES` and `INSTEAD`, tables as for tinygrad."""

from __future__ import annotations

HERE = "glassgrad.compat.torch"

MODULES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "torch": ((HERE,), {"__version__": f"{HERE}:__version__"}),
    **{f"torch.{name}": ((f"{HERE}.nn",), {}) for name in ("nn", "nn.parameter", "nn.modules")},
    **{f"torch.nn.{name}": ((f"glassgrad.nn.{name}",), {}) for name in ("functional", "init", "utils")},
    "torch.nn.utils.rnn": (("glassgrad.nn.sequences",), {}),
    "torch.optim": (("glassgrad.nn.optim",), {}),
    "torch.optim.lr_scheduler": (("glassgrad.nn.optim.lr_scheduler",), {}),
    **{f"torch.{name}": (("glassgrad.nn.optim.mixed_precision",), {}) for name in ("amp", "cuda.amp")},
    "torch.backends": ((f"{HERE}.devices",), {}),
    "torch.backends.cudnn": ((), {}),
    "torch.random": ((f"{HERE}.creation",), {}),
    **{f"torch.{name}": ((f"{HERE}.{name}",), {}) for name in (
        "autograd", "cuda", "distributions", "func", "linalg", "special", "utils", "utils.checkpoint", "utils.data")},
    "torch.autograd.functional": ((f"{HERE}.autograd_functional",), {}),
}

# prefixes of module names without a counterpart: what to use instead
INSTEAD: dict[str, str] = {
    "torch.distributed": "a tensor is on one device here; run one process for each",
    "torch.jit": "kernels are always compiled; glassgrad.TinyJit replays a function",
    "torch.onnx": "save the weights with nn.state.safe_save; glassgrad.onnx runs ONNX models",
    "torch.quantization": "cast the weights: x.cast(dtypes.int8)",
    "torch.fx": "x.uop is the graph of a tensor",
    "torch.cuda": "`glassgrad devices` names the GPU; GlobalCounters has the memory in use",
    "torch.set_default_device": "DEV=CUDA in the environment, or glassgrad.Device.DEFAULT = \"CUDA\"",
    "torch.profiler": "DEBUG=2 times each kernel, VIZ=1 draws them (docs/guide/why_is_it_slow.md)",
    "torch.nn.DataParallel": "a tensor is on one device here; run one process for each",
    "torch.nn.parallel": "a tensor is on one device here; run one process for each",
    "torch.hub": "torch.load reads weights; docs/guide/pretrained_weights.md",
    "torch.fft": "there are no complex numbers here",
    "torch.sparse": "there are no sparse tensors here; x.gather and x.scatter_add read and write by index",
    "torch": "docs/from_pytorch.md says where things are, docs/api.md lists every name",
}
