"""`glassgrad tune export|import|show|clear`: manage the results of BEAM searches. In: arguments. Out: an exit status.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassgrad.cli import parser_of
from glassgrad.runtime.search import tuning_results as tuning

EXAMPLES = """examples:
  BEAM=2 python train.py                  search: ten seconds for each kernel at most (BEAM_SECONDS=10), once
  glassgrad tune show                     what was found
  glassgrad tune export mine.json         take it along, to another computer of the same kind
  glassgrad tune import mine.json
  BEAM=2 BEAM_SECONDS=0 python train.py   use what is known, search for nothing
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of export, import, show and clear; return the exit status."""
    parser = parser_of("tune", "See, take along or forget the kernels that BEAM searches found.", EXAMPLES)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, says in {"export": "write all that is known on this machine into a file",
                       "import": "take over what a file knows"}.items():
        actions.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.").add_argument("file")
    for name, says in {"show": "list the kernels with their moves", "clear": "forget all of them"}.items():
        actions.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")
    options = parser.parse_args(arguments)
    if options.action == "export":
        print(f"{_kernels(tuning.export_tuning(options.file))} written to {options.file}")
    elif options.action == "import":
        print(f"{_kernels(tuning.import_tuning(options.file))} read from {options.file}; BEAM=1 or more uses them")
    elif options.action == "clear":
        print(f"{_kernels(tuning.clear_tuning())} forgotten")
    else:
        show()
    return 0


def show() -> None:
    """Print the tuned kernels of this machine, largest speed-up first."""
    known = sorted(tuning.known(), key=lambda t: (-t.speedup, t.kernel))
    for t in known:
        print(f"{t.kernel:<40} {t.recipe_us:10.1f} us {t.speedup:6.2f}x  {' '.join(t.moves) or 'the recipe'}")
    print(f"{_kernels(len(known))}, {sum(bool(t.moves) for t in known)} of them faster than the recipe")


def _kernels(count: int) -> str:
    return f"{count} kernel{'' if count == 1 else 's'}"
