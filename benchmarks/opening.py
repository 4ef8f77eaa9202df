"""Time how long it takes to open a safetensors file of 500 MB: `python -m benchmarks.opening`. Out: JSON.

The file is a hole on disk (its bytes read as 0), so writing it costs nothing. `opened` is the time until every tensor
can be used, `used` the time until one of them was summed, and `grown` how much memory the process gained by opening.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

__all__ = ["measure_opening"]

TENSORS, ROWS, COLUMNS = 100, 1280, 1024      # 100 tensors of 5 MiB


def _write(path: Path, tensors: int) -> None:
    size = ROWS * COLUMNS * 4
    places = [[n * size, (n + 1) * size] for n in range(tensors)]
    entries = {f"layer.{n}.weight": {"dtype": "F32", "shape": [ROWS, COLUMNS], "data_offsets": place}
               for n, place in enumerate(places)}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)         # as the library writes it: numbers lie at multiples of their size
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + tensors * size)


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def measure_opening(tensors: int = TENSORS, times: int = 9) -> dict[str, float]:
    """Seconds until the tensors are there, seconds until one is summed, bytes the process grew by opening."""
    from glassgrad import Tensor
    from glassgrad.nn.state import safe_load
    Tensor.ones(4).sum().item()
    opened, used, grown = [], [], []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        path = Path(folder) / "weights.safetensors"
        _write(path, tensors)
        for _ in range(times):
            before, began = _resident(), time.perf_counter()
            state = safe_load(path)
            opened.append(time.perf_counter() - began)
            grown.append(_resident() - before)
            assert state["layer.0.weight"].sum().item() == 0.0, "a hole reads as zeros"
            used.append(time.perf_counter() - began)
            del state
    return {"bytes": tensors * ROWS * COLUMNS * 4, "opened": statistics.median(opened),
            "used": statistics.median(used), "grown": float(max(grown))}


if __name__ == "__main__":
    print(json.dumps(measure_opening()))
