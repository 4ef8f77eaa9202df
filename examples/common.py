"""What the examples share: finding files, and a training loop that shows how it goes and can be resumed.

In: names of files; a step to call. Out: paths; a trained model. Everything about models is in the examples themselves.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from glassgrad import Tensor
from glassgrad.nn.datafiles import cache_folder
from glassgrad.nn.download import download
from glassgrad.nn.state import load_checkpoint, save_checkpoint

CHECKOUT = Path(__file__).resolve().parent.parent


def find_file(path: str, address: str, sha256: str) -> Path:
    """A file of the examples: in $GLASSGRAD_DATA, beside the checkout, in the user's cache; else it is downloaded."""
    for folder in (os.environ.get("GLASSGRAD_DATA"), CHECKOUT.parent / "shared" / "data", cache_folder()):
        if folder and (Path(folder).expanduser() / path).is_file():
            return Path(folder).expanduser() / path
    return download([address], cache_folder() / path, sha256)


def shakespeare() -> str:
    """The plays in one text of 1.1 million characters."""
    return find_file("text/tinyshakespeare.txt",
                     "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                     "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed").read_text()


def training_arguments(description: str, steps: int, example: str, checkpoint: str) -> argparse.ArgumentParser:
    """The options that every training has."""
    parser = argparse.ArgumentParser(description=description, epilog=f"example: {example}")
    parser.add_argument("--steps", type=int, default=steps, help=f"training steps in all (default: {steps})")
    parser.add_argument("--checkpoint", default="", metavar="FILE",
                        help=f"save the training here, and go on from it when it is there (such as {checkpoint})")
    parser.add_argument("--save-every", type=int, default=200, metavar="N", help="steps between saves (default: 200)")
    parser.add_argument("--seed", type=int, default=1337, help="of all random numbers (default: 1337)")
    return parser


def train(options: argparse.Namespace, model: Any, optimizer: Any, step: Callable[[int], Tensor],
          report: Callable[[], str] | None = None, report_every: int = 200) -> float:
    """Call `step` until `options.steps`, from the checkpoint if there is one; the seconds it took.

    `step(number)` does one step and gives its loss; `report()` says more, every `report_every` steps and at the end.
    """
    first = 0
    if options.checkpoint and Path(options.checkpoint).exists():
        first = load_checkpoint(options.checkpoint, model, optimizer).step
        print(f"going on from step {first} in {options.checkpoint}")
    start, losses = time.perf_counter(), []
    with tqdm(total=options.steps, initial=first, desc="training", unit="step", disable=None) as bar:
        for number in range(first, options.steps):
            losses.append(step(number).item())
            bar.update()
            done = number + 1
            if done % report_every == 0 or done == options.steps:
                said = f"step {done}: loss {sum(losses) / len(losses):.4f}" + (f", {report()}" if report else "")
                losses.clear()
                bar.write(f"{said}, {time.perf_counter() - start:.0f} s") if not bar.disable else \
                    print(f"{said}, {time.perf_counter() - start:.0f} s", flush=True)
            if options.checkpoint and (done % options.save_every == 0 or done == options.steps):
                save_checkpoint(options.checkpoint, model, optimizer, step=done)
    return time.perf_counter() - start
