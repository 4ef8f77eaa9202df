"""Weights into a file and back."""
import os
import tempfile

from tinygrad import Tensor, dtypes, nn
from tinygrad.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

first, second = nn.Linear(3, 2), nn.Linear(3, 2)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.safetensors")
    safe_save(get_state_dict(first), path)
    state = safe_load(path)
    assert sorted(state) == ["bias", "weight"] and all(isinstance(t, Tensor) for t in state.values())
    load_state_dict(second, {**state, "unknown": Tensor.ones(1)}, verbose=False)
x = Tensor.rand(4, 3)
assert first.weight.tolist() == second.weight.tolist() and len(get_parameters(second)) == 2
assert (first(x) - second(x)).abs().max().item() < 1e-6
load_state_dict(second, {name: t.cast(dtypes.float16) for name, t in get_state_dict(first).items()}, verbose=False)
assert second.weight.dtype == dtypes.float16, "as tinygrad has it, the state's type"
