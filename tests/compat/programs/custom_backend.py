"""A device of one's own: memory, a compiler and a launcher, with the shorter signatures of older texts."""
import ctypes
import subprocess
import tempfile

from tinygrad import Tensor
from tinygrad.device import Allocator, Compiled, Compiler, Device
from tinygrad.renderer.cstyle import CStyleLanguage

launched = []


class MyAllocator(Allocator):
    def _alloc(self, size):
        return (ctypes.c_uint8 * size)()

    def _free(self, buf):
        pass

    def copyin(self, dest, src):
        ctypes.memmove(dest, bytes(src), len(src))

    def copyout(self, dest, src):
        dest[:] = bytes(src)[:len(dest)]


class MyCompiler(Compiler):
    def compile(self, src):
        with tempfile.NamedTemporaryFile(suffix=".so") as out:
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", out.name, "-lm"], input=src.encode(),
                           check=True)
            return open(out.name, "rb").read()


class MyRunner:
    def __init__(self, name, lib):
        self.file = tempfile.NamedTemporaryFile(suffix=".so")
        self.file.write(lib)
        self.file.flush()
        self.function = getattr(ctypes.CDLL(self.file.name), name)

    def __call__(self, *bufs, global_size, local_size):
        launched.append(len(bufs))
        self.function(*bufs)


class MyDevice(Compiled):
    def __init__(self, device):
        super().__init__(device, MyAllocator(), CStyleLanguage(), MyCompiler(), MyRunner)


Device._devices["MY"] = MyDevice
result = Tensor([1, 2, 3], device="MY") + Tensor([4, 5, 6], device="MY")
assert result.tolist() == [5, 7, 9] and launched, launched
assert isinstance(result, Tensor) and result.device == "MY"
