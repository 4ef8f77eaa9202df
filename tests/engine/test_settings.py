"""Settings: their page, their types, where a value comes from, and what is said of a wrong one."""

from __future__ import annotations

import ast
import os
import re
import threading
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassgrad import Context, Device, InputError, Tensor
from glassgrad.base.settings import LEAST, SETTINGS, current_state, settings
from glassgrad.base.source_lines import calls_are_noted

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    section = PAGE[PAGE.index(f"\n## {heading}\n"):]
    table = re.search(r"(?:^\|.*\n)+", section, re.M)
    assert table
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.group().splitlines()[2:]]


# -- the page ------------------------------------------------------------------------------------------------
def test_the_page_lists_every_setting_and_no_other() -> None:
    assert [row[0].strip("`") for row in rows("All of them")] == list(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_page_gives_the_default(name: str) -> None:
    default = next(row[1] for row in rows("All of them") if row[0] == f"`{name}`")
    assert default == f"`{SETTINGS[name].default}`" if SETTINGS[name].default != "" else '`""`'


def test_the_page_lists_every_device_flag_in_order() -> None:
    assert [(row[0].strip("`"), row[1].strip("`")) for row in rows("Which device")] == \
        [(f"{flag}=1", device) for flag, device in Device.flags.items()]


def test_the_page_has_every_debug_level() -> None:
    assert [row[0] for row in rows("DEBUG")] == ["1", "2", "3", "4"]
    for label in ("initial", "folded", "after loop analysis", "optimized", "linearized", "N kernels, X.X ms"):
        assert f"`{label}`" in PAGE


def test_every_setting_is_read_somewhere() -> None:
    read = set()
    for path in (ROOT / "glassgrad").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "settings":
                read.add(node.attr)
    assert read == set(SETTINGS)


def test_viz_takes_a_switch_or_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.VIZ == 0
    for text, value in (("1", 1), ("0", 0), ("", 0), ("out.html", "out.html")):
        monkeypatch.setenv("VIZ", text)
        assert settings.VIZ == value
    with Context(VIZ="other.html"):
        assert settings.VIZ == "other.html"
    with Context(VIZ=1):
        assert settings.VIZ == 1


def test_settings_are_typed_by_their_default_and_described() -> None:
    for setting in SETTINGS.values():
        assert type(setting.default) in (int, float, str)
        assert setting.doc.endswith(".") and setting.name.isupper()


# -- where a value comes from --------------------------------------------------------------------------------
def test_context_over_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEAM", raising=False)
    assert settings.BEAM == 0
    monkeypatch.setenv("BEAM", "3")
    assert settings.BEAM == 3
    with Context(BEAM=5):
        assert settings.BEAM == 5
        with Context(DEBUG=0):
            assert settings.BEAM == 5, "what an inner Context does not name stays"
        with Context(BEAM=7):
            assert settings.BEAM == 7
        assert settings.BEAM == 5
    assert settings.BEAM == 3
    monkeypatch.setenv("BEAM", "")
    assert settings.BEAM == 0, "an empty variable counts as none"


WRITES: dict[str, Callable[[Any], Any]] = {
    "item": lambda env: env.__setitem__("DEBUG", "2"), "update": lambda env: env.update(DEBUG="2"),
    "or": lambda env: env.__ior__({"DEBUG": "2"}), "setdefault": lambda env: env.setdefault("DEBUG", "2"),
    "bytes": lambda env: os.environb.__setitem__(b"DEBUG", b"2")}
DROPS: dict[str, Callable[[Any], Any]] = {
    "del": lambda env: env.__delitem__("DEBUG"), "pop": lambda env: env.pop("DEBUG"), "clear": lambda env: env.clear(),
    "popitem": lambda env: [env.popitem() for _ in range(len(env))],
    "bytes": lambda env: os.environb.__delitem__(b"DEBUG")}


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("write", WRITES)
def test_every_way_to_change_the_environment_is_seen(write: str, drop: str) -> None:
    if "bytes" in (write, drop) and not os.supports_bytes_environ:
        pytest.skip("this system's environment is text")
    with unittest.mock.patch.dict(os.environ):
        os.environ.pop("DEBUG", None)
        before = current_state()
        WRITES[write](os.environ)
        assert current_state().debug == 2 and current_state() is current_state()
        DROPS[drop](os.environ)
        assert current_state().debug == 0 and (drop in ("clear", "popitem") or current_state() is before)
        os.environ["ANOTHER_VARIABLE"] = "1"
        assert current_state() is not before, "a jitted function may read any variable"
    assert current_state() is current_state()


def test_context_ends_with_an_exception() -> None:
    before = settings.NOOPT
    with pytest.raises(ZeroDivisionError), Context(NOOPT=1 - before):
        _ = 1 // 0
    assert settings.NOOPT == before


def test_context_as_decorator_and_again() -> None:
    context = Context(BEAM=2)

    @context
    def inside(n: int) -> int:
        """Doc."""
        return settings.BEAM if n == 0 else inside(n - 1)

    assert inside(3) == 2 and settings.BEAM == 0
    assert (inside.__name__, inside.__doc__) == ("inside", "Doc.")
    with context, context:
        assert settings.BEAM == 2
    assert settings.BEAM == 0


def test_context_belongs_to_its_thread() -> None:
    seen: list[int] = []
    with Context(BEAM=9):
        thread = threading.Thread(target=lambda: seen.append(settings.BEAM))
        thread.start()
        thread.join()
    assert seen == [0]


def test_types_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(BEAM_SECONDS=3, NOOPT=True, DEV="CLANG"):
        assert settings.BEAM_SECONDS == 3.0 and type(settings.BEAM_SECONDS) is float
        assert settings.NOOPT == 1 and type(settings.NOOPT) is int
        assert settings.DEV == "CLANG"
    monkeypatch.setenv("BEAM_SECONDS", "2.5")
    assert settings.BEAM_SECONDS == 2.5


# -- what is said of a wrong one: whole messages -------------------------------------------------------------
def message(error: pytest.ExceptionInfo[InputError]) -> str:
    return str(error.value).partition("\n  at: ")[0]


def test_a_value_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "two")
    with pytest.raises(InputError) as error:
        _ = settings.DEBUG
    assert message(error) == """\
the setting DEBUG has a value that cannot be read
  given:    DEBUG=two
  expected: a value of type int, such as DEBUG=0
  fix:      correct the environment variable"""


def test_an_amount_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADS", "-3")
    with pytest.raises(InputError) as error:
        Tensor([1.0, 2.0]).exp().realize()          # one task: no worker is asked for, and it is said all the same
    assert message(error) == """\
the setting THREADS cannot be that small
  given:    THREADS=-3
  expected: 0 or more. Worker threads of the CPU devices; 0 takes the cores this process may use.
  fix:      correct the environment variable"""
    with pytest.raises(InputError) as error:
        Context(THREADS=-1)
    assert message(error) == """\
the setting THREADS cannot be that small
  given:    Context(THREADS=-1)
  expected: 0 or more. Worker threads of the CPU devices; 0 takes the cores this process may use.
  fix:      write THREADS=0, the default, or more"""
    with pytest.raises(InputError, match="BEAM_SECONDS cannot be that small"):
        Context(BEAM_SECONDS=float("nan"))


@pytest.mark.parametrize("name", LEAST)
def test_the_least_amount_is_allowed_and_below_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(LEAST[name]))
    assert getattr(settings, name) == LEAST[name] <= SETTINGS[name].default
    monkeypatch.setenv(name, str(LEAST[name] - 1))
    with pytest.raises(InputError, match=f"the setting {name} cannot be that small"):
        getattr(settings, name)


@pytest.mark.parametrize("name", [s.name for s in SETTINGS.values() if type(s.default) is not str and not s.or_file])
def test_nonsense_in_a_setting_is_said_by_the_first_computation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "abc")
    with pytest.raises(InputError, match=f"the setting {name} has a value that cannot be read"):
        Tensor([1.0, 2.0]).exp().realize()


def test_a_knob_that_does_not_exist() -> None:
    with pytest.raises(InputError) as error:
        Context(DEBUGG=1)
    assert message(error) == f"""\
Context was given a setting that does not exist
  given:    DEBUGG=1
  expected: one of {', '.join(SETTINGS)}
  fix:      check the spelling"""
    with pytest.raises(AttributeError, match="there is no setting 'DEBUGG'; the settings are DEBUG, NOOPT"):
        _ = settings.DEBUGG


def test_a_value_of_the_wrong_type() -> None:
    with pytest.raises(InputError) as error:
        Context(DEBUG="two")
    assert message(error) == """\
Context was given a value of the wrong type
  given:    DEBUG='two'
  expected: a value of type int
  fix:      write DEBUG=0"""


def test_old_texts_use_context_for_something_else() -> None:
    with pytest.raises(InputError) as error:
        Context([1.0], print)
    assert message(error) == """\
Context sets settings; it does not record operations for backward
  given:    Context(list, builtin_function_or_method)
  expected: keyword arguments, such as Context(DEBUG=2)
  fix:      for a custom gradient write a subclass of glassgrad.Function with forward and backward"""


def test_calls_are_noted_until_the_context_that_sanitizes_ends() -> None:
    before = calls_are_noted()
    with Context(SANITIZE=1):
        assert calls_are_noted()
        with Context(SANITIZE=1):
            assert calls_are_noted()
        assert calls_are_noted()
    assert calls_are_noted() == before
    with Context(SANITIZE=0):
        assert calls_are_noted() == before
