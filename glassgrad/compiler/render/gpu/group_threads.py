"""Which threads of a group do what a statement says. In: indices and stores. Out: conditions, as text.

A vector of a loop tree is a group of threads (gpu_source.py). One with fewer lanes than the group has threads leaves
the rest without work, and a value without lanes is stored by the first thread alone. In every language of GPUs alike.
"""

from __future__ import annotations

from glassgrad.base.errors import Bug
from glassgrad.compiler.graph.uop import UOp
from glassgrad.compiler.lower.loops import Prefetch, Store, ranges_of

__all__ = ["GroupThreads"]


class GroupThreads:
    """Part of a function that every thread of a group runs."""
    thread: str = "thread"                 # the variable that holds the number of this thread
    threads: int                           # of a group
    thread_ranges: frozenset[UOp]          # that count threads

    def takes_part(self, index: UOp) -> str:
        """The condition under which this thread has a lane that an index depends on; empty: it always has."""
        sizes = {r.arg.size for r in ranges_of(index) if r in self.thread_ranges}
        least = min(sizes, default=self.threads)
        return f"{self.thread} < {least}" if least < self.threads else ""

    def store_test(self, statement: Store, gate: str) -> str:
        """The condition under which this thread stores, where the statement itself has that of `gate`; empty: it always
        does."""
        index = statement.index
        alone = self.thread_ranges.isdisjoint(ranges_of(index))
        if alone and not self.thread_ranges.isdisjoint(ranges_of(statement.value)):
            raise Bug("threads would overwrite each other in one place")
        tests = [f"{self.thread} == 0" if alone else self.takes_part(index), gate]
        return " && ".join(t for t in tests if t)

    def prefetch(self, statement: Prefetch) -> None:
        """Other threads run while one waits for memory."""
