"""The command `glassgrad`. In: arguments. Out: an exit status: 0 done, 1 it went wrong, 2 wrong usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from glassgrad.base.errors import GlassgradError

EXAMPLES = """examples:
  glassgrad demo                train on handwritten digits and show what ran
  glassgrad demo --epochs 1     the same, sooner
  glassgrad devices             what this machine offers to run on
  glassgrad data                where the data sets are, or would be
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; wrong usage prints help and exits 2.

    >>> main(["data", "--help"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    parser = build_parser()
    given, rest = parser.parse_known_args(arguments)
    if given.command is None:
        parser.print_help(sys.stderr)
        return 2
    if given.command == "demo":             # the demo reads its own arguments, and loads much: only when asked
        return int(import_module("glassgrad.demo").main(rest))
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return show_devices() if given.command == "devices" else show_data()


def build_parser() -> argparse.ArgumentParser:
    """The commands and their help."""
    parser = argparse.ArgumentParser(prog="glassgrad", description="A deep-learning framework you can see through.",
                                     epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"glassgrad {installed_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    commands.add_parser("demo", help="train on handwritten digits and show what ran", add_help=False)
    commands.add_parser("devices", help="show what this machine offers to run on")
    commands.add_parser("data", help="show where the data sets are, or would be")
    return parser


def installed_version() -> str:
    """The version of the installed package, or a word that says there is none."""
    try:
        return version("glassgrad")
    except PackageNotFoundError:
        return "(not installed: run from a source folder)"


def show_devices() -> int:
    """Print one line per kind of device: what it is here, or why it cannot be had."""
    host, llvm, c = (import_module(f"glassgrad.runtime.{room}") for room in ("host", "llvm", "ccompiler"))
    target = host.host_description()
    print(f"{'CPU':<8} {target.cpu}, {host.available_cores()} cores, {target.vector_bytes * 8}-bit vectors, "
          f"compiled by {llvm.compiler_version()}")
    try:
        print(f"{'CLANG':<8} the same processor, compiled by {c.compiler_version()}")
    except GlassgradError as problem:
        print(f"{'CLANG':<8} not here: {problem.given}; {problem.mend}")
    return 0


def show_data() -> int:
    """Print, for each data set, where it would be read from."""
    datafiles = import_module("glassgrad.nn.datafiles")
    for dataset in (datafiles.MNIST, datafiles.FASHION_MNIST, datafiles.CIFAR_10):
        print(f"{dataset.title:<14} {datafiles.whereabouts(dataset)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
