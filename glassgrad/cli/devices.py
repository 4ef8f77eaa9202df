"""`glassgrad devices`: list the devices of this machine. In: arguments. Out: text, and an exit status.

Everything is read from the devices' records and from the devices that open: this file names none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glassgrad.base.errors import DeviceError
from glassgrad.cli import parser_of
from glassgrad.cli.doctor import describe, marked
from glassgrad.compiler.graph.dtype import dtypes
from glassgrad.conformance.peak_rates import measured_peak
from glassgrad.runtime.devices import Device

EXAMPLES = """examples:
  glassgrad devices                       what is here, and what the others need
  glassgrad devices --measure             and how fast it is: up to two seconds for each
  DEV=CLANG python script.py              run a script on another one
  glassgrad conformance CLANG             what a device does rightly
"""


def main(arguments: Sequence[str]) -> int:
    """Print each device: its description or what it lacks, its names, element types and matrix units."""
    parser = parser_of("devices", "Show what this machine offers to run on.", EXAMPLES)
    parser.add_argument("--measure", action="store_true", help="measure arithmetic and memory speed of each")
    options = parser.parse_args(arguments)
    for name in Device.records:
        print(f"{name:<8} {describe(name)}{marked(name)}")
        for text in details(name, options.measure):
            print(f"{'':<8} {text}")
    return 0


def details(name: str, measure: bool) -> Iterator[str]:
    """Return further properties of a device, a line each."""
    record = Device.records[name]
    facts = {"also": ", ".join(record.aliases), "runs on": record.target, "kernels in": record.dialect}
    yield from filter(None, ["; ".join(f"{what} {fact}" for what, fact in facts.items() if fact)])
    try:
        opened = Device[name]
    except (DeviceError, ImportError):
        yield f"needs {record.install or 'what its own documentation says'}"
        return
    missing = opened.missing_types
    units = [unit.name for unit in getattr(getattr(opened, "target", None), "units", ())]
    yield (f"dtypes: all {len(dtypes.all)}" + f" but {', '.join(missing)}" * bool(missing) +
           f"; matrix units: {', '.join(units) or 'none'}")
    if measure:
        peak = measured_peak(name)
        yield f"measured: {peak.gflops:.3g} GFLOPS in float32, {peak.gigabytes_per_second:.3g} GB/s"
