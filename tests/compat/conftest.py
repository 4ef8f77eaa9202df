"""The scripts in programs/ are run by test_programs.py, not collected."""

collect_ignore = ["programs"]
