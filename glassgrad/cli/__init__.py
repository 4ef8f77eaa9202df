"""Define the command `glassgrad`. In: arguments. Out: an exit status: 0 done, 1 it went wrong, 2 wrong usage."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from glassgrad.base.errors import GlassgradError

EXAMPLES = """examples:
  glassgrad demo                          train on handwritten digits and show what ran
  glassgrad train mnist                   train a convolutional network; also: fashion, cifar, shakespeare
  glassgrad train shakespeare --steps 500 --checkpoint plays.safetensors
  glassgrad doctor                        is everything here, and does it work?
  glassgrad devices                       what this machine offers to run on
  glassgrad conformance CPU               what a device does rightly: checks of nine grades
  glassgrad data                          where the data sets are, or would be
  glassgrad tune show                     what BEAM searches found; also: export, import, clear
  glassgrad viz script.py                 run a script, and show what became of it in a browser
  glassgrad explain script.py             run a script; its slowest kernels, their lines and why
  glassgrad bench --quick                 how fast it is, in a checkout

Each command explains itself: glassgrad train --help
"""
OWN_ARGUMENTS = ("demo", "train", "tune", "viz", "explain", "devices", "conformance", "onnx")    # each a file here


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; wrong usage prints help and returns 2.

    >>> main(["data", "--help"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser()
    if given and given[0] in OWN_ARGUMENTS:
        return _run_command(lambda: import_module(f"glassgrad.cli.{given[0]}").main(given[1:]))
    if given and given[0] == "bench":
        return bench(given[1:])
    command = parser.parse_args(given).command
    if command is None:
        parser.print_help(sys.stderr)
        return 2
    checks = import_module("glassgrad.cli.doctor")
    return _run_command({"doctor": checks.doctor, "data": checks.show_data}[command])


def _run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit status; a user's mistake is printed without a traceback."""
    try:
        return command()
    except GlassgradError as problem:
        print(problem.advice, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nglassgrad: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:                     # `glassgrad doctor | head` has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the commands, with their help."""
    parser = argparse.ArgumentParser(prog="glassgrad", description="A deep-learning framework you can see through.",
                                     epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = installed("glassgrad") or "(not installed: run from a source folder)"
    parser.add_argument("--version", action="version", version=f"glassgrad {here}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, says in {"demo": "train on handwritten digits and show what ran",
                       "train": "train a model on mnist, fashion, cifar or shakespeare",
                       "doctor": "show devices, caches and memory, and test them",
                       "devices": "show what this machine offers to run on",
                       "conformance": "check a device against NumPy, and grade it",
                       "onnx": "show what is in an ONNX model, and whether it runs here",
                       "data": "show where the data sets are, or would be",
                       "tune": "show, export or import the kernels that BEAM found",
                       "viz": "run a script, and show its graphs, kernels, time and memory",
                       "explain": "run a script, and say which lines took the time and why",
                       "bench": "measure how fast it is, against others (in a checkout)"}.items():
        commands.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")
    return parser


def parser_of(command: str, description: str, examples: str) -> argparse.ArgumentParser:
    """Return a parser of a command's own arguments, whose help ends with examples."""
    return argparse.ArgumentParser(prog=f"glassgrad {command}", description=description, epilog=examples,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)


def installed(package: str) -> str:
    """Return the version of an installed package, or ""."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def bench(arguments: Sequence[str]) -> int:
    """Run the benchmarks, which are in the repository and not in the package."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / "benchmarks" / "__main__.py").exists():
        print("the benchmarks are not part of the installed package\n"
              "  fix:      clone the repository, and run ./dev bench in it", file=sys.stderr)
        return 1
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=checkout, check=False).returncode
