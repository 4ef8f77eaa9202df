"""Programs that tests record, and the data of their pages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from scripts import run_script

TRAINING = """
    from glassgrad import Tensor, TinyJit, nn

    class Net:
        def __init__(self):
            self.first, self.second = nn.Linear(64, 48), nn.Linear(48, 10)

        def __call__(self, x):
            return self.second(self.first(x).relu())

    net = Net()
    optimizer = nn.optim.SGD(nn.state.get_parameters(net), lr=0.1)

    @TinyJit
    @Tensor.train()
    def step(x, y):
        optimizer.zero_grad()
        loss = net(x).cross_entropy(y)
        loss.backward()
        optimizer.step()
        return loss

    x, y = Tensor.rand(32, 64).realize(), Tensor.randint(32, high=10).realize()
    for _ in range(6):
        step(x, y).item()
"""


def page_of(source: str, path: Path, name: str = "script.py", **environment: str) -> str:
    """The page that a script leaves."""
    _, said = run_script(source, name=name, VIZ=str(path), **environment)
    assert f"VIZ: wrote {path}" in said
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    """The data in a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def path_of(data: dict[str, Any], call: int) -> list[str]:
    """The names of a call and those around it, the outermost first."""
    names = []
    while call >= 0:
        call, name, _ = data["calls"][call]
        names.append(name)
    return names[::-1]
