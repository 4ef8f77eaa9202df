"""The server answers this machine alone, who has the token, and nothing but the page."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from glassgrad.viz.page_data import page_data
from glassgrad.viz.recorder import Recorder
from glassgrad.viz.server import PageServer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer(page_data(Recorder(), measure=False)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_page_is_there_for_who_has_the_token(server: PageServer) -> None:
    status, page = ask(server, f"/?token={server.token}")
    assert status == 200 and page.startswith("<!doctype html>")
    assert urllib.request.urlopen(server.address).headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong"])
def test_without_the_token_nothing(server: PageServer, path: str) -> None:
    assert ask(server, path) == (403, "the address needs the token that was printed with it\n")


def test_only_one_path_and_nothing_is_written(server: PageServer) -> None:
    assert ask(server, f"/etc/passwd?token={server.token}")[0] == 404
    assert ask(server, f"/../../etc/passwd?token={server.token}")[0] == 404
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(server, f"/?token={server.token}", method)[0] == 501


def test_another_host_name_is_refused(server: PageServer) -> None:
    assert ask(server, f"/?token={server.token}", Host="evil.example")[0] == 403


def test_it_listens_on_this_machine_alone(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1" and server.server_port > 0
    assert PageServer(page_data(Recorder(), measure=False)).server_port != server.server_port


@pytest.mark.skipif(sys.platform == "win32", reason="it is ended by a signal")
def test_a_script_is_served_after_it_ended_until_ctrl_c(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("from glassgrad import Tensor\n(Tensor([1.0]) + 1).realize()\nprint('done', flush=True)\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    running = subprocess.Popen([sys.executable, "-m", "glassgrad", "viz", str(script)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**environment, "PYTHONPATH": str(ROOT)})
    try:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == "done\n"
        said = running.stderr.readline()
        address = re.fullmatch(r"VIZ: (http://127\.0\.0\.1:\d+/\?token=\S+)\n", said)
        assert address is not None, said
        assert b"script.py" in urllib.request.urlopen(address[1]).read()
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 0


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.py"
    done = subprocess.run([sys.executable, "-m", "glassgrad", "explain", str(missing)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stderr.endswith(f"there is no such script\n  given:    {missing}\n"
                                "  expected: the path of a Python file\n  fix:      check the path\n"), done.stderr


# -- where there is nothing to run, or nowhere to write ------------------------------------------------------
def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "glassgrad", *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT), **environment})


def test_a_script_that_is_not_there_ends_at_once() -> None:
    done = command("viz", "nothing.py")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == """there is no such script
  given:    nothing.py
  expected: the path of a Python file
  fix:      check the path
"""


def test_a_folder_that_is_not_there_is_refused_before_the_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    done = command("viz", "--out", str(tmp_path / "no" / "out.html"), str(script))
    assert done.returncode == 1 and done.stdout == ""
    assert "the visualizer's page could not be written there" in done.stderr
    assert "expected: a file in a folder that exists" in done.stderr
