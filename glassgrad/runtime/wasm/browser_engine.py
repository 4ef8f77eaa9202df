"""Run WebAssembly by the JavaScript engine that runs this Python, where Python itself is WebAssembly (Pyodide, in a
browser or in node). In: modules. Out: functions to call, over one shared memory.

That memory is not Python's own: bytes are copied in and out, as for any device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glassgrad.compiler.render.wasm.module_encoding import MEMORY, RUN
from glassgrad.runtime.wasm.linear_memory import FIRST_BYTES, LIMIT, PAGE, Stopped


class BrowserEngine:
    """A JavaScript WebAssembly.Memory; modules are compiled and called by the JavaScript engine."""

    def __init__(self) -> None:
        import js
        from pyodide.ffi import JsException, to_js
        from pyodide_js import version
        self._js, self._to_js, self._error = js, to_js, JsException
        self.version = f"JavaScript's engine, under Pyodide {version}"
        self._memory = js.WebAssembly.Memory.new(self._object(initial=FIRST_BYTES // PAGE, maximum=LIMIT // PAGE))

    def _object(self, **members: Any) -> Any:
        return self._to_js(members, dict_converter=self._js.Object.fromEntries)

    # -- memory ------------------------------------------------------------------------------------------------
    def size(self) -> int:
        return int(self._memory.buffer.byteLength)

    def grow(self, nbytes: int) -> bool:
        try:
            self._memory.grow(nbytes // PAGE)
        except self._error:
            return False
        return True

    def read(self, address: int, nbytes: int) -> bytearray:
        return bytearray(self._view(address, nbytes).to_bytes())

    def write(self, address: int, data: memoryview) -> None:
        self._view(address, data.nbytes).assign(data)

    def _view(self, address: int, nbytes: int) -> Any:
        """Return a Uint8Array of some bytes. It is made anew for each use, because growing the memory detaches its
        buffer."""
        return self._js.Uint8Array.new(self._memory.buffer, address, nbytes)

    # -- functions ---------------------------------------------------------------------------------------------
    def load(self, binary: bytes) -> Callable[[], None]:
        """Compile a module; return its exported function, which raises `Stopped` on a trap."""
        module = self._js.WebAssembly.Module.new(self._to_js(binary))
        space, name = MEMORY
        imports = self._object(**{space: self._object(**{name: self._memory})})
        call = getattr(self._js.WebAssembly.Instance.new(module, imports).exports, RUN)

        def run() -> None:
            try:
                call()
            except self._error as stop:
                raise Stopped(str(stop)) from None
        return run
