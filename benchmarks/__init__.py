"""Side-by-side measurements of glassgrad and its peers: `./dev bench`, or `python -m benchmarks`.

Nothing here is part of the test suite, which times nothing; tests/project/test_benchmarks.py tests the harness alone.
"""
