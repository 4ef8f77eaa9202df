"""Run scripts of tinygrad and PyTorch on glassgrad. In: `import tinygrad` in a script. Out: modules of glassgrad.

    import glassgrad.compat                        # from here on, `import tinygrad` and its submodules lead here
    python -m glassgrad.compat script.py [args]    # the same, for an unchanged script

An installed tinygrad is not changed, and cannot be imported after this. `tinygrad/module_names.py` maps the names.
"""

from __future__ import annotations

from glassgrad.compat.import_hook import install, uninstall

__all__ = ["install", "uninstall"]

install()
