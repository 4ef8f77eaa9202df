"""The five steps of docs/performance.md compute a @ b, on ragged sizes too, and the page can be written anew."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import performance
from benchmarks.bars import bars
from benchmarks.matmul_steps import other_tiles, steps
from glassgrad.compiler.graph import ops as o
from glassgrad.compiler.lower.loops import LANE, TASK, TILE, For, Store, walk
from glassgrad.compiler.optimize.targets.target import Target
from glassgrad.runtime.cpu.processor import host_description

HOST = Target.of(host_description())
PACKS = Target("x86_64", 64, 32, frozenset({"avx512f", "fma"}), l2_bytes=1 << 20)    # larger caches pack nothing at 384
SIZES = [(64, 64, 64), (96, 96, 96), (37, 41, 43), (127, 8, 17), (5, 300, 70)]


@pytest.mark.parametrize("rows, inner, columns", SIZES)
def test_every_step_is_right(rows: int, inner: int, columns: int, rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s, np.float32) for s in ((rows, inner), (inner, columns)))
    wanted = a.astype(np.float64) @ b
    for step in steps(rows, inner, columns, HOST):
        given = [performance.aligned(m.nbytes).view(np.float32) for m in (a, b)]
        given[0][:], given[1][:] = a.ravel(), b.ravel()
        got = performance.answers(step, *(g.reshape(m.shape) for g, m in zip(given, (a, b))))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4, err_msg=step.name)


def test_other_tiles_give_the_same_answer_bit_for_bit(rng: np.random.Generator) -> None:
    given = [performance.aligned(4 * 200 * 200).view(np.float32).reshape(200, 200) for _ in range(2)]
    for matrix in given:
        matrix[:] = rng.standard_normal((200, 200), np.float32)
    answers = [performance.answers(step, *given) for step in other_tiles(200, 200, 200, HOST)]
    assert len(answers) >= 4                     # a target whose own tile has four rows has one fewer
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[-1])


@pytest.mark.parametrize("target", [HOST, Target("x86_64", 32, 16, frozenset({"avx2", "fma"})),
                                    Target("x86_64", 64, 32, frozenset({"avx512f", "fma"}))])
@pytest.mark.parametrize("size", [384, performance.SIZE])
def test_other_tiles_fit_the_sizes_of_the_page(size: int, target: Target) -> None:
    names = [step.name for step in other_tiles(size, size, size, target)]
    assert len(dict.fromkeys(names)) == len(names) >= 4


def test_each_step_adds_what_it_says() -> None:
    made = {s.name: s for s in steps(384, 384, 384, PACKS)}
    kinds = {name: {s.kind for p in step.kernel.phases for s in walk(p.body) if isinstance(s, For)}
             for name, step in made.items()}
    assert not kinds["naive"] & {TILE, LANE, TASK}
    assert TILE in kinds["tiled"] and not kinds["tiled"] & {LANE, TASK}
    assert {TILE, LANE} <= kinds["vectorized"] and len(made["vectorized"].kernel.phases) == 1
    written = [s.memory for p in made["packed"].kernel.phases for s in walk(p.body) if isinstance(s, Store)]
    assert any(memory.op is o.LOCAL for memory in written) and TASK not in kinds["packed"]
    assert TASK in kinds["parallel"]


def test_the_peak_kernel_computes_what_its_registers_say() -> None:
    lanes, times = HOST.lanes(4), 10
    out, given = (performance.aligned(4 * lanes).view(np.float32) for _ in range(2))
    given[:] = 0.5
    performance.launcher(performance.peak_kernel(HOST, 1, times), [out, given])()
    wanted = 0.0
    for _ in range(times):
        wanted = wanted * 0.5 + 0.5
    np.testing.assert_allclose(out, wanted)


def test_the_command_writes_the_page(tmp_path, monkeypatch, capsys) -> None:
    page, plot = tmp_path / "performance.md", tmp_path / "steps.svg"
    page.write_text(f"before\n{performance.BEGIN}old figures\n{performance.END}after\n")
    for name, value in {"PAGE": page, "PLOT": plot, "SHORT": True}.items():
        monkeypatch.setattr(performance, name, value)
    monkeypatch.setattr(performance, "torch_rate", lambda size, threads: None)
    monkeypatch.setattr("sys.argv", ["performance", "--write"])
    performance.main()
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old figures" not in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][1:6] == [
        "| naive", "| tiled", "| vectorized", "| packed", "| parallel"]
    assert plot.read_text().startswith("<svg") and "loop i0 in 96" in capsys.readouterr().out


def test_the_committed_page_has_its_figures() -> None:
    text = performance.PAGE.read_text()
    figures = text[text.index(performance.BEGIN):text.index(performance.END)]
    assert "Measured on" in figures and "| parallel |" in figures


def test_bars_are_as_long_as_their_rates() -> None:
    drawn = bars({"half": 50.0, "whole": 100.0}, "title", {})
    assert 'width="280.0"' in drawn and 'width="560.0"' in drawn
