"""Folders are stages: imports flow one way, without circles, and the compiler loads without NumPy and llvmlite."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from scripts import run_script

PACKAGE = Path(__file__).resolve().parents[2] / "glassgrad"
PURE = [f"compiler/{stage}" for stage in ("graph", "schedule", "lower", "optimize", "render")]
STAGES = ["base", *PURE, "compiler/pipeline", "compiler/check", "runtime", "engine", "tensor", "nn"]

# Imports inside functions: what is heavy, or of one system only, is loaded when it is needed.
HEAVY = {"numpy", "llvmlite", "pyopencl", "wasmtime", "wgpu", "tqdm", "fcntl", "resource",
         "importlib.metadata", "pickle", "urllib", "gzip", "hashlib", "html", "js", "pyodide", "pyodide_js"}
OPENED_WHEN_NEEDED = {
    "runtime/devices.py": "devices are opened by name",
    "runtime/cpu/native_device.py": "a warm process takes its kernels from the disk cache and never loads the compiler",
    "runtime/gpu/gpu_device.py": "a warm process finds its kernels on disk, and loads no compiler",
    "runtime/compiled_kernels.py": "a warm process finds its kernels on disk; a search, only under BEAM",
    "compiler/render/launch_info.py": "a warm process reads how kernels are launched, and never loads the optimizer",
    "runtime/wasm/wasm_device.py": "a warm process finds its kernels on disk, and loads no compiler",
    "tensor/printing.py": "how numbers are laid out is loaded when values are shown, not with the package",
    "runtime/search/tuning_results.py": "only an imported file is checked against the kinds of moves",
    "runtime/cpu/worker_pool.py": "only where llvmlite is missing is the pool compiled from C",
    "compiler/pipeline.py": "a pass over kernels loads its code when it runs: a warm process finds its kernels on disk",
    "engine/compiled_schedule.py": "CHECK loads the interpreter",
    "engine/check/compare.py": "what finds a fault and writes a script about it, only where there is one",
    "engine/check/bisect.py": "CHECK interprets loop trees, which loads NumPy",
    "tensor/tinygrad_methods.py": "a kernel of one's own brings a C compiler and processes, which few ever need",
    "compiler/graph/uop.py": "view.py is built on uop.py, and few ever ask for it; pictures are for notebooks",
    "compiler/schedule/kernels.py": "pictures are for notebooks",
    "tensor/index_value_range.py": "how the compiler bounds indices is loaded only where a tensor is an index",
    "tensor/realize_and_read.py": "pictures are for notebooks; SANITIZE loads what finds a NaN",
    "compiler/lower/loops.py": "pictures are for notebooks, and show loops",
}


class Import(NamedTuple):
    file: str
    line: int
    module: str
    deferred: bool
    typing: bool      # for the type checker only

    def __str__(self) -> str:
        return f"glassgrad/{self.file}:{self.line} imports {self.module}"


def imports_of(path: Path) -> Iterator[Import]:
    file = path.relative_to(PACKAGE).as_posix()

    def visit(node: ast.AST, deferred: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ImportFrom):
                assert not child.level, f"{file}:{child.lineno} imports relatively; write glassgrad.folder.file"
                module = str(child.module)
                folder = PACKAGE.parent / module.replace(".", "/")
                inner = [f"{module}.{a.name}" for a in child.names
                         if (folder / f"{a.name}.py").exists() or (folder / a.name).is_dir()]
                yield from (Import(file, child.lineno, m, deferred, typing) for m in inner or [module])
            elif isinstance(child, ast.Import):
                yield from (Import(file, child.lineno, a.name, deferred, typing) for a in child.names)
            else:
                function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
                yield from visit(child, deferred or function, typing or checked)

    yield from visit(ast.parse(path.read_text()), False, False)


ALL = [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports_of(path)]


def stage_of(name: str) -> int | None:
    """The stage of a file (compiler/graph/uop.py) or module (glassgrad.compiler.graph.uop); None for what stands
    beside the stages."""
    path = name.removeprefix("glassgrad.").replace(".", "/") + "/"
    return next((i for i, stage in enumerate(STAGES) if path.startswith(stage + "/")), None)


def test_there_is_something_to_check() -> None:
    assert {stage_of(f.file) for f in ALL} >= set(range(len(STAGES))) and len(ALL) > 300


def test_imports_flow_one_way() -> None:
    wrong = []
    for found in ALL:
        here, there = stage_of(found.file), stage_of(found.module) if found.module.startswith("glassgrad") else None
        if here is not None and found.module.startswith("glassgrad") and (there is None or there > here):
            wrong.append(f"{found}, which is a later stage")
    assert not wrong, "\n".join(wrong)


def test_imports_inside_functions_have_a_reason() -> None:
    stages = [f for f in ALL if stage_of(f.file) is not None or f.file.startswith("jit/")]
    wrong = [str(f) for f in stages if f.deferred and f.module not in HEAVY and f.module.split(".")[0] not in HEAVY
             and not (f.file in OPENED_WHEN_NEEDED and f.module.startswith("glassgrad."))]
    assert not wrong, "move these to the top of the file, or give their reason here:\n" + "\n".join(wrong)
    used = {f.file for f in stages if f.deferred and f.module.startswith("glassgrad.")}
    assert set(OPENED_WHEN_NEEDED) == used, "a reason that nobody needs any more"


def test_no_import_circles() -> None:
    needs: dict[str, set[str]] = {}
    for found in ALL:
        if not found.deferred and not found.typing and found.module.startswith("glassgrad."):
            name = "glassgrad." + found.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            needs.setdefault(name, set()).add(found.module)
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, "a circle: " + " -> ".join([*path[path.index(name):], name])
        if name not in done:
            for other in sorted(needs.get(name, ())):
                visit(other, [*path, name])
            done.add(name)

    for name in sorted(needs):
        visit(name, [])


def test_nobody_imports_what_is_not_declared() -> None:
    """At run time: the standard library, ourselves, the three packages that pyproject.toml names, and what an extra
    brings, where it is used."""
    declared = {"glassgrad", "numpy", "llvmlite", "tqdm", "typing_extensions", "tinygrad_lite"}
    browser = dict.fromkeys(("js", "pyodide", "pyodide_js"), "runtime/wasm/browser_engine.py")
    only_in = {"pyopencl": "runtime/gpu/opencl.py", "wgpu": "runtime/gpu/webgpu.py", **browser,
               "wasmtime": "runtime/wasm/wasmtime_engine.py", "onnx": "onnx/operators.py", "onnxruntime": "cli/onnx.py"}
    for package, file in only_in.items():
        users = {f.file for f in ALL if f.module.split(".")[0] == package}
        declared |= {package} if users <= {file} else set()
    known = declared | set(sys.stdlib_module_names)
    wrong = [str(f) for f in ALL if f.module.split(".")[0] not in known]
    only_typing = [str(f) for f in ALL if f.module == "typing_extensions" and not f.typing]
    assert not wrong and not only_typing, "\n".join(wrong + only_typing)


def test_only_its_command_imports_the_folder_onnx() -> None:
    users = {f.file for f in ALL if f.module.startswith("glassgrad.onnx") and not f.file.startswith("onnx/")}
    assert users == {"cli/onnx.py"}


@pytest.mark.parametrize("stages", [[*PURE, "compiler/pipeline"], STAGES[:-1]], ids=["compiler", "all but nn"])
def test_loading_needs_neither_numpy_nor_llvmlite(stages: list[str]) -> None:
    interpreters = ("loop_interpreter", "checked_memory", "copies_in_flight", "named_arrays",    # made of NumPy
                    "python_device")
    modules = [".".join(("glassgrad", *p.relative_to(PACKAGE).with_suffix("").parts)) for s in stages
               for p in (sorted((PACKAGE / s).rglob("*.py")) or [PACKAGE / f"{s}.py"])
               if p.stem not in ("__init__", *interpreters)]
    script = f"""
        import importlib, sys
        for name in {modules!r}:
            importlib.import_module(name)
            heavy = [m for m in ("numpy", "llvmlite") if m in sys.modules]
            assert not heavy, f"loading {{name}} loads {{heavy}}"
        print("loaded", len(sys.modules))
    """
    assert run_script(script)[0].startswith("loaded")
