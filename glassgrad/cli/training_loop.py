"""Run the training loop of all commands that train. In: a step to call. Out: progress, and a checkpoint.

Progress is a bar in a terminal, and lines elsewhere. With `--checkpoint` a training that was stopped continues where it
was: Ctrl-C lets the step end and saves it; a second Ctrl-C stops at once. Does not depend on models.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from glassgrad.base.errors import InputError
from glassgrad.nn.state import load_checkpoint, save_checkpoint
from glassgrad.tensor.tensor import Tensor


def add_training_options(parser: argparse.ArgumentParser, steps: int | None,
                         default: str = "") -> argparse.ArgumentParser:
    """Add the options that every training has; `default` is the help text for a default of `--steps` that varies."""
    parser.add_argument("--steps", type=at_least_one, default=steps,
                        help=f"training steps in all (default: {default or steps})")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE",
                        help="save the training here, and go on from it when it is there")
    parser.add_argument("--save-every", type=at_least_one, default=200, metavar="N",
                        help="steps between saves (default: 200)")
    parser.add_argument("--seed", type=int, default=1337, help="of all random numbers (default: 1337)")
    return parser


def at_least_one(text: str) -> int:
    """Parse an integer above 0, for argparse.

    >>> at_least_one("3")
    3
    """
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


at_least_one.__name__ = "integer"          # argparse says "invalid integer value: 'x'"


@contextmanager
def _interrupt_noted(wanted: bool) -> Iterator[threading.Event]:
    """Make the first Ctrl-C inside the block only set the event, so that a step can end; the next one interrupts."""
    asked = threading.Event()
    before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not wanted or not callable(before):       # SIGINT is ignored, or this is not the main thread, which gets signals
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        if asked.is_set():
            before(number, frame)
        asked.set()
        tqdm.write("stopping after this step, to save it; Ctrl-C again stops at once")

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def train(options: argparse.Namespace, model: Any, optimizer: Any, step: Callable[[int], Tensor],
          report: Callable[[], str] | None = None, report_every: int = 200) -> float:
    """Call `step` until `options.steps`, from the checkpoint on if there is one; return the seconds it took.

    `step(number)` does one step and returns its loss; `report()` returns more text, every `report_every` steps and at
    the end."""
    first = 0
    if options.checkpoint and not os.access(options.checkpoint.parent, os.W_OK):
        raise InputError("the checkpoint cannot be written", given=f"--checkpoint {options.checkpoint}",
                         expected="a file in a folder that exists and may be written to",
                         fix=f"make the folder: mkdir -p {options.checkpoint.parent}; or name another file")
    if options.checkpoint and options.checkpoint.exists():
        first = load_checkpoint(options.checkpoint, model, optimizer).step
        print(f"going on from step {first} in {options.checkpoint}")
    start, total, count = time.perf_counter(), 0.0, 0
    with _interrupt_noted(bool(options.checkpoint)) as interrupt, \
            tqdm(total=options.steps, initial=first, desc="training", unit="step", disable=None) as bar:
        for done in range(first + 1, options.steps + 1):
            total, count = total + step(done - 1).item(), count + 1
            bar.update()
            ends = done == options.steps
            if done % report_every == 0 or ends:
                said = f"step {done}: loss {total / count:.4f}" + (f", {report()}" if report else "")
                total, count = 0.0, 0
                tqdm.write(f"{said}, {time.perf_counter() - start:.0f} s")
            stops = interrupt.is_set()           # asked once: a Ctrl-C that comes now stops after the next step
            if options.checkpoint and (done % options.save_every == 0 or ends or stops):
                save_checkpoint(options.checkpoint, model, optimizer, step=done)
            if stops and not ends:
                tqdm.write(f"step {done} of {options.steps} is saved in {options.checkpoint}; the same command goes on "
                           "from there")
                raise KeyboardInterrupt
    return time.perf_counter() - start
