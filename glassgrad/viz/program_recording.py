"""Record a whole program, and show it when it ends. In: the setting VIZ. Out: an HTML file, or a page on 127.0.0.1.

    VIZ=1           a server on this machine alone, until Ctrl-C
    VIZ=out.html    one file, which can be sent to others
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
import threading
from time import perf_counter

from glassgrad.base.errors import GlassgradError, InputError
from glassgrad.base.settings import settings
from glassgrad.compiler.graph.rules.rewrite import note_rules
from glassgrad.engine.observer import ignore, observe
from glassgrad.viz.page_data import page_data
from glassgrad.viz.recorder import Recorder

_recorder: Recorder | None = None
_target: int | str = 0
_lock = threading.Lock()


def begin(target: int | str) -> Recorder:
    """Start recording, and show the recording when the program ends. `target` is the value of VIZ."""
    global _recorder, _target
    with _lock:
        if _recorder is None:
            _recorder, _target = Recorder(), target
            observe(_recorder)
            _recorder.watch_calls()
            note_rules(_recorder.applied)
            atexit.register(_finish, os.getpid())
        return _recorder


def recording() -> Recorder | None:
    """Return the recording of this program, if there is one."""
    return _recorder


def end() -> Recorder | None:
    """Stop recording; return the recording."""
    global _recorder
    with _lock:
        recorder, _recorder = _recorder, None
        if recorder is not None:
            recorder.stop()
            ignore(recorder)
            note_rules(None)
        return recorder


def _finish(process: int) -> None:
    """Show the recording at the end of the program; a forked process ends without a page."""
    target = _target
    if os.getpid() != process:
        return
    recorder = end()
    if recorder is None or not settings.VIZ and target == settings.VIZ:
        return
    try:
        show(recorder, target)
    except GlassgradError as problem:
        print(problem, file=sys.stderr)


def show(recorder: Recorder, target: int | str) -> None:
    """Write the file, or serve the page until Ctrl-C."""
    start = perf_counter()
    data = page_data(recorder)
    if isinstance(target, str):
        from glassgrad.viz.html_file import write_page
        try:
            write_page(data, target)
        except InputError as problem:              # write the page elsewhere rather than lose the recording
            print(problem.advice, file=sys.stderr)
            target = os.path.join(tempfile.mkdtemp(prefix="glassgrad-viz-"), "out.html")
            write_page(data, target)
        size = os.path.getsize(target) / 1e6
        print(f"VIZ: wrote {target} ({size:.1f} MB, {perf_counter() - start:.1f} s): open it in a browser",
              file=sys.stderr)
    else:
        from glassgrad.viz.server import serve
        serve(data)
