"""Test and grade a device, and measure its peak speed. In: a device's name. Out: a `Report`, and a `Peak`.

    case.py                   a check: what the device computes, what is expected, and how they are compared
    op_checks.py              elementwise ops, reductions, contractions and views against NumPy in float64
    copy_checks.py            copies
    element_type_checks.py    one set of checks for each dtype
    program_checks.py         random numbers, the jit, training
    check_groups.py           the groups of checks, in the order in which to make a new device pass them
    runner.py                 each group in a separate process, so that a crash or a hang ends one check, not the run
    report.py                 the result as a table, as JSON and as a page
    peak_rates.py             arithmetic and memory speed, measured
"""
