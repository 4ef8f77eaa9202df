"""Which process of pytest-xdist runs which test: fixed by `rotation.shared_out`, where xdist lets the faster take more.

In: the collected tests and xdist's processes. Out: each process has its tests, in their order. Where a process dies, a
new one takes what it had left.
"""

from __future__ import annotations

import rotation
from xdist.scheduler import LoadScheduling


class FixedScheduling(LoadScheduling):
    """All tests are given out at the start."""

    def schedule(self) -> None:
        if self.collection is not None or not self._check_nodes_have_same_collection():
            super().schedule()
            return
        self.collection = next(iter(self.node2collection.values()))
        self.maxschedchunk = len(self.collection)
        nodes = sorted(self.nodes, key=lambda node: int(node.gateway.id.removeprefix("gw")))
        numbers = rotation.shared_out(self.collection, len(nodes))
        for number, node in enumerate(nodes):
            tests = [i for i, process in enumerate(numbers) if process == number]
            self.node2pending[node].extend(tests)
            node.send_runtest_some(tests)
            node.shutdown()
