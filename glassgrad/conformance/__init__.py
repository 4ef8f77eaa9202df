"""What a device does rightly, and how fast it is. In: a device's name. Out: a `Report`, and a `Peak`.

    case.py          a check: what is computed on the device, what is right, and how they are compared
    element_expressions.py        elementwise ops, reductions, contractions and views against NumPy in float64
    memory.py        copies;  element_types.py  one set of checks for each dtype
    programs.py      random numbers, the jit, training
    check_groups.py        the groups of checks in the order in which a new device gets them right
    runner.py        each group in a process of its own, so that a crash or a hang ends one check, not the run
    report.py        the result as a table, as JSON and as a page
    peak_rates.py          arithmetic and memory speed, measured
"""
