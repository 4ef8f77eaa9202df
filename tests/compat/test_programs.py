"""Programs that texts about tinygrad show run under `python -m glassgrad.compat`; the map of its files is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glassgrad.compat.import_hook import INSTEAD, MODULES, install, instead_of, uninstall

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
PAGE = (ROOT / "docs" / "from_tinygrad.md").read_text()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
@pytest.mark.slow_on("PYTHON")
def test_a_program_of_a_text_runs(program: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "glassgrad.compat", str(program)], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_programs_are_those_that_texts_show() -> None:
    assert {path.stem for path in PROGRAMS} == {
        "first_tensors", "lazy_graph", "schedule", "op_kinds", "views", "gradients", "mlp", "cnn", "save_and_load",
        "custom_op", "custom_backend", "jit", "transformer"}


# -- what is not here says what to use -------------------------------------------------------------------------------
ABSENT = {
    "tinygrad.codegen.kernel": "kernels are loop trees here",
    "tinygrad.codegen.opt.heuristic": "kernels are loop trees here",
    "tinygrad.runtime.ops_clang": 'the device CLANG: Tensor(values, device="CLANG"), or CLANG=1 in the environment',
    "tinygrad.runtime.ops_gpu": "GPU=1 in the environment",
    "tinygrad.runtime.ops_qcom": "docs/guide/07_custom_backend.md",
    "tinygrad.engine.search": "BEAM=2",
    "tinygrad.schedule.rangeify": "glassgrad.compiler.schedule",
    "tinygrad.gradient": "glassgrad.compiler.graph.gradient",
    "tinygrad.llops.ops_cpu": "glassgrad.compiler.graph.gradient",
    "tinygrad.runtime.ops_webgpu": 'the device WEBGPU: Tensor(values, device="WEBGPU"), or WEBGPU=1 in the environment',
    "tinygrad.runtime.ops_cl": 'the device OPENCL: Tensor(values, device="OPENCL"), or CL=1 in the environment',
    "tinygrad.opt.search": "BEAM=2 searches",
    "tinygrad.optim": "from tinygrad.nn.optim import SGD, Adam",
    "tinygrad.datasets": "from tinygrad.nn.datasets import mnist",
    "tinygrad.utils": "from tinygrad.helpers import fetch",
    "tinygrad.extra.models": "models in the examples folder",
    "tinygrad.frontend.onnx": "from tinygrad.nn.onnx import OnnxRunner",
    "tinygrad.nn.torch": "python -m glassgrad.compat --torch script.py",
    "tinygrad.image": "never in textures",
    "tinygrad.state": "from tinygrad.nn.state import get_parameters",
    "tinygrad.no_such_module": "docs/from_tinygrad.md says where things are",
}


@pytest.mark.parametrize("module", ABSENT)
def test_a_module_without_a_counterpart_says_what_to_use(module: str) -> None:
    try:
        install()
        with pytest.raises(ModuleNotFoundError, match=re.escape(ABSENT[module])) as caught:
            __import__(module)
        assert module.startswith(re.findall("glassgrad.compat has no '([^']*)': ", str(caught.value))[0])
    finally:
        uninstall()


ABSENT_NAMES = {
    "tinygrad.mlops Relu": "the gradient of each op is in glassgrad.compiler.graph.gradient",
    "tinygrad.ops PatternMatcher": "rules are glassgrad.compiler.graph.rules",
    "tinygrad.uop.ops UPat": "rules are glassgrad.compiler.graph.rules",
    "tinygrad.runtime.ops_python PythonProgram": "docs/guide/07_custom_backend.md",
    "tinygrad.engine.realize method_cache": "glassgrad.engine realizes and counts",
    "tinygrad.viz.serve get_viz_list": "VIZ=1 shows graphs and kernels in a browser",
    "tinygrad codegen": "kernels are loop trees here",
    "tinygrad.helpers GRAPH": "VIZ=1 shows graphs and kernels in a browser",
    "tinygrad.shape.symbolic NumNode": "glassgrad.compiler.graph.symbolic",
    "tinygrad.nn.optim get_parameters": "from tinygrad.nn.state import get_parameters",
}


@pytest.mark.parametrize("place", ABSENT_NAMES)
def test_a_name_that_is_imported_from_a_module_says_what_to_use(place: str) -> None:
    module, name = place.split()
    try:
        install()
        with pytest.raises(ImportError) as caught:
            exec(f"from {module} import {name}")
        assert str(caught.value).startswith(f"glassgrad.compat has no '{module}.{name}': ")
        assert ABSENT_NAMES[place] in str(caught.value)
    finally:
        uninstall()


def test_a_name_without_a_counterpart_says_what_to_use() -> None:
    try:
        install()
        import tinygrad.uop.ops
        with pytest.raises(AttributeError) as caught:
            tinygrad.uop.ops.PatternMatcher  # noqa: B018
        assert str(caught.value) == (
            "tinygrad.uop.ops.PatternMatcher has no counterpart in glassgrad: the node and its ops are "
            "glassgrad.compiler.graph.uop and ops; rules are glassgrad.compiler.graph.rules")
    finally:
        uninstall()


def test_lazy_buffers_are_made_by_tensors() -> None:
    from glassgrad import InputError, Tensor
    from glassgrad.compat.tinygrad.tinygrad_uop import LazyBuffer
    assert isinstance((Tensor([1]) + 1).lazydata, LazyBuffer) and not isinstance(Tensor([1]), LazyBuffer)
    with pytest.raises(InputError) as caught:
        LazyBuffer.fromCPU([1.0])
    assert str(caught.value).partition("\n  at:")[0] == (
        "a LazyBuffer is made by a tensor\n"
        "  given:    LazyBuffer.fromCPU(array)\n"
        "  expected: a tensor's node\n"
        "  fix:      write Tensor(array).lazydata")
    with pytest.raises(InputError) as caught:
        LazyBuffer("CPU", (3,), None)
    assert str(caught.value).splitlines()[1:4] == [
        "  given:    LazyBuffer(device, st, dtype, ...)", "  expected: a tensor's node",
        "  fix:      write Tensor(values).lazydata, Tensor.empty(shape).lazydata"]


def test_the_reason_for_an_absent_renderer_names_ours() -> None:
    from glassgrad.compat.tinygrad import absent_classes
    for name, folder in (("CUDARenderer", "gpu"), ("WGSLRenderer", "wgsl"), ("LLVMRenderer", "llvm")):
        reason = getattr(absent_classes, name).reason
        assert f"glassgrad.compiler.render.{folder}" in reason
        for path in re.findall(r"glassgrad(?:\.\w+)+", reason):
            place = ROOT.joinpath(*path.split("."))
            assert place.is_dir() or place.with_suffix(".py").is_file()


@pytest.mark.parametrize("start", INSTEAD)
def test_every_module_that_an_answer_names_is_there(start: str) -> None:
    for name in re.findall(r"glassgrad(?:\.\w+)+", INSTEAD[start]):
        path = ROOT.joinpath(*name.split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file() or \
            hasattr(__import__("glassgrad"), name.split(".")[1]), name
    for page in re.findall(r"docs/[\w/]+\.md", INSTEAD[start]):
        assert (ROOT / page).is_file(), page


# -- the map of files ------------------------------------------------------------------------------------------------
def rows() -> list[list[str]]:
    section = PAGE.partition("## tinygrad's files, and ours\n")[2].partition("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()
            if line.startswith("| `")]


def test_the_map_of_files_has_rows() -> None:
    assert len(rows()) >= 25


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0].strip("`"))
def test_a_row_of_the_map_is_true(row: list[str]) -> None:
    theirs, ours, _ = row
    places = re.findall(r"\]\(\.\./([\w/.]+)\)", ours)
    assert places, ours
    for place in places:
        assert (ROOT / place).exists(), place
    for file in re.findall(r"`([\w/.]+)`", theirs):
        module = "tinygrad." + file.removesuffix(".py").removesuffix("/").removesuffix("/__init__").replace("/", ".")
        assert module in MODULES or instead_of(module) != INSTEAD["tinygrad"], f"{module} is neither here nor answered"
