"""Measure glassgrad side by side with its peers: `./dev bench`, or `python -m benchmarks`.

Nothing here is part of the test suite, which measures no times; tests/project/test_benchmarks.py tests the harness
alone.
"""
