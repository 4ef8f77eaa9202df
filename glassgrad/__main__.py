"""`python -m glassgrad` is the command `glassgrad`. In: arguments. Out: an exit status."""

import sys

from glassgrad.cli import main

sys.exit(main())
