"""Control the processes of the frameworks from the command. In: requests. Out: answers, in time or not at all.

A process that is not being timed is stopped (SIGSTOP), not merely idle: worker threads of OpenMP and others go on
spinning for a while after their work is done, and would take a core from the next measurement.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.frameworks import Framework

__all__ = ["Peer", "PeerFailure", "TimedOut", "environment", "kill_all", "ROOT"]

ROOT = Path(__file__).resolve().parent.parent
CAN_STOP = hasattr(signal, "SIGSTOP")
SPIN_SECONDS = 0.4      # where a process cannot be stopped: longer than the usual OpenMP runtimes spin


class PeerFailure(Exception):
    """The framework answered with an error, or its process ended. `kind` is the exception's name there."""

    def __init__(self, message: str, kind: str = ""):
        super().__init__(message)
        self.kind = kind


class TimedOut(PeerFailure):
    """No answer within the limit; the process was ended."""


def environment(caches: Path, threads: int) -> dict[str, str]:
    """Variables for a framework's process: its caches in a folder of this run, as many threads as the others."""
    count = str(threads)
    # compiled Python files are kept, as where a package is installed: all frameworks start from theirs
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "CACHE_DIR": str(caches / "glassgrad"), "XDG_CACHE_HOME": str(caches),
            "JAX_COMPILATION_CACHE_DIR": str(caches / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3",
            "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "THREADS": count, "NUM_CPU_THREADS": count,
            "DEV": "CPU"}


def signal_all(process: subprocess.Popen[str], number: int) -> None:
    """Signal a process and those it started, such as compilers; it must lead a session of its own."""
    with contextlib.suppress(OSError):      # it has ended
        os.killpg(process.pid, number)


def kill_all(process: subprocess.Popen[str]) -> None:
    """End a process, stopped or not, and those it started."""
    if hasattr(os, "killpg"):
        signal_all(process, signal.SIGKILL)
    else:
        process.kill()
    process.wait()


class Peer:
    """A framework's process: started when first asked, stopped between requests, started anew after it failed."""

    def __init__(self, framework: Framework, variables: dict[str, str], log: Path, tree: Path = ROOT):
        self.framework, self.variables, self.log, self.tree = framework, variables, log, tree
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str | None] = queue.Queue()
        self.version = ""

    def start(self, limit: float) -> None:
        with open(self.log, "w") as log:
            command = [sys.executable, "-m", "benchmarks.worker", self.framework.module]
            self.process = subprocess.Popen(command, cwd=self.tree, env=self.variables, text=True,
                                            start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log)
        self.answers = queue.Queue()
        threading.Thread(target=self._read, args=(self.process.stdout, self.answers), daemon=True).start()
        self.version = self._answer(limit)["version"]

    @staticmethod
    def _read(stream: Any, answers: queue.Queue[str | None]) -> None:
        for line in stream:
            answers.put(line)
        answers.put(None)

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer, at most `limit` seconds; then stop the process again."""
        began = time.monotonic()
        if self.process is None:
            self.start(limit)
        assert self.process is not None and self.process.stdin is not None
        if CAN_STOP:
            signal_all(self.process, signal.SIGCONT)
        with contextlib.suppress(OSError):      # when it has ended, the missing answer says how
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        answer = self._answer(limit - (time.monotonic() - began))
        self._stop()
        return answer

    def _stop(self) -> None:
        """Return when no thread of the process runs any more."""
        assert self.process is not None
        if not CAN_STOP:
            time.sleep(SPIN_SECONDS)
            return
        signal_all(self.process, signal.SIGSTOP)
        if hasattr(os, "waitid"):       # else the signal arrives soon enough
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _answer(self, limit: float) -> dict[str, Any]:
        assert self.process is not None
        try:
            line = self.answers.get(timeout=max(limit, 0.001))
        except queue.Empty:
            self.end()
            raise TimedOut("timed out") from None
        if line is None:
            code = self.process.wait()
            how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            self.end()
            raise PeerFailure(f"its process ended with {how}{self._last_words()}", kind="Ended")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailure(answer["error"], answer["kind"])
        return answer

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""

    def end(self) -> None:
        """End the process; the next request starts another."""
        if self.process is not None:
            kill_all(self.process)
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):      # a request may still lie in the pipe
                self.process.stdin.close()
            self.process = None
