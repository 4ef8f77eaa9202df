"""Run WebAssembly in this process with the package `wasmtime`. In: modules. Out: functions to call.

All modules share the one memory of the engine. Does not know kernels or tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from glassgrad.base.errors import DeviceError
from glassgrad.compiler.render.wasm.module_encoding import MEMORY, RUN
from glassgrad.runtime.wasm.linear_memory import FIRST_BYTES, LIMIT, PAGE, Stopped


class WasmtimeEngine:
    """One store with one memory. Not safe for several threads at once."""

    def __init__(self) -> None:
        try:
            import wasmtime
        except ImportError:
            raise DeviceError("WASM needs the package wasmtime", given="no wasmtime",
                              expected="an engine for WebAssembly", fix="pip install wasmtime") from None
        from importlib.metadata import version
        self.wasmtime, self.version = wasmtime, f"wasmtime {version('wasmtime')}"
        self.store = wasmtime.Store(wasmtime.Engine())
        limits = wasmtime.Limits(FIRST_BYTES // PAGE, LIMIT // PAGE)
        self.memory = wasmtime.Memory(self.store, wasmtime.MemoryType(limits))

    # -- memory ------------------------------------------------------------------------------------------------
    def size(self) -> int:
        nbytes: int = self.memory.data_len(self.store)
        return nbytes

    def grow(self, nbytes: int) -> bool:
        try:
            self.memory.grow(self.store, nbytes // PAGE)
        except self.wasmtime.WasmtimeError:
            return False
        return True

    def _address(self, address: int) -> int:
        """Return the host pointer of an address. It is looked up for each use, because a memory that grows may move."""
        return ctypes.addressof(self.memory.data_ptr(self.store).contents) + address

    def read(self, address: int, nbytes: int) -> bytearray:
        out = bytearray(nbytes)
        ctypes.memmove((ctypes.c_char * nbytes).from_buffer(out), self._address(address), nbytes)
        return out

    def write(self, address: int, data: memoryview) -> None:
        source = bytes(data) if data.readonly else (ctypes.c_char * data.nbytes).from_buffer(data)
        ctypes.memmove(self._address(address), source, data.nbytes)

    # -- functions ---------------------------------------------------------------------------------------------
    def load(self, binary: bytes) -> Callable[[], None]:
        """Compile a module; return its exported function, which raises `Stopped` on a trap."""
        wasmtime, store = self.wasmtime, self.store
        module = wasmtime.Module(store.engine, binary)
        assert [(i.module, i.name) for i in module.imports] == [MEMORY]
        function: Any = wasmtime.Instance(store, module, [self.memory]).exports(store)[RUN]

        def run() -> None:
            try:
                function(store)
            except wasmtime.Trap as trap:
                raise Stopped(trap.message.strip().rpartition("wasm trap: ")[2]) from None
        return run
