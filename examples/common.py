"""What the examples share: finding their files, and options. In: names. Out: paths, texts, a parser.

The training loop is that of `glassgrad train`; everything about models is in the examples themselves.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from glassgrad.cli.training_loop import add_training_options, at_least_one, train
from glassgrad.nn.datasets.download import download
from glassgrad.nn.datasets.files import cache_folder

__all__ = ["at_least_one", "find_file", "shakespeare", "train", "training_arguments"]

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


def training_arguments(description: str, steps: int, example: str) -> argparse.ArgumentParser:
    """A parser with the options that every training has."""
    return add_training_options(argparse.ArgumentParser(description=description, epilog=f"example: {example}"), steps)
