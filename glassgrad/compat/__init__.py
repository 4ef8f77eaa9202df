"""tinygrad's names, answered by glassgrad. In: `import tinygrad` in a script. Out: modules of ours.

    import glassgrad.compat                        # from here on, `import tinygrad` and its submodules lead here
    python -m glassgrad.compat script.py [args]    # the same, for a script that stays as it is

An installed tinygrad is not changed, and not importable after this. `tinygrad/module_names.py` maps the names.
"""

from __future__ import annotations

from glassgrad.compat.import_hook import install, uninstall

__all__ = ["install", "uninstall"]

install()
