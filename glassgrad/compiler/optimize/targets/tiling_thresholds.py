"""Thresholds from which a family of tilings pays. In: nothing. Out: `TilingThresholds`, of which targets have
tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TilingThresholds:
    """When a family of tilings pays on a target, and how its work is split into tasks and blocks of K."""
    least_k: int = 1         # least products per result
    least_work: int = 0      # least multiply-adds; with fewer, plain loops are as fast
    task_work: int = 1       # multiply-adds that are worth a task
    most_tasks: int = 1
    long_k: int = 0          # products that one register may add up; longer sums are split into blocks
    k_block: int = 0         # of this many products

    def tasks(self, work: int) -> int:
        """How many tasks this many multiply-adds are worth."""
        return max(1, min(self.most_tasks, work // self.task_work))

    def __post_init__(self) -> None:
        assert self.k_block <= self.long_k, "a block of K is a part of a sum that was too long"
