"""Names of a model's tensors, and loading by name: what is found, and what is said when things do not fit."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pytest

from glassgrad import InputError, ShapeError, Tensor, dtypes, nn
from glassgrad.nn.state import get_parameters, get_state_dict, load_state_dict


class Linear:
    def __init__(self, inputs: int = 2, outputs: int = 2):
        self.inputs, self.name = inputs, "linear"
        self.weight, self.bias = Tensor.zeros(outputs, inputs), Tensor.zeros(outputs)


Pair = namedtuple("Pair", "left right")


# ---- finding


def test_every_kind_of_container_is_walked_in_order():
    class Model:
        def __init__(self):
            self.first = Linear()
            self.layers = [Linear(), Tensor.relu, (Tensor([1.0]), None)]
            self.named = OrderedDict([("b", Tensor([2.0])), ("a", {3: Tensor([3.0])})])
            self.pair = Pair(Tensor([4.0]), Linear())
            self.queue = deque([Tensor([5.0])])
            self.module, self.kind, self.numbers = np, Linear, np.zeros(3)
    assert list(get_state_dict(Model())) == [
        "first.weight", "first.bias", "layers.0.weight", "layers.0.bias", "layers.2.0", "named.b", "named.a.3",
        "pair.left", "pair.right.weight", "pair.right.bias", "queue.0"]


def test_slots_and_dataclasses_are_walked():
    class Slotted:
        __slots__ = ("weight", "never_set")

        def __init__(self): self.weight = Tensor([1.0])

    class Below(Slotted):
        __slots__ = ("bias",)

        def __init__(self):
            super().__init__()
            self.bias = Tensor([2.0])

    @dataclass
    class Data:
        w: Tensor = field(default_factory=lambda: Tensor([1.0]))
    assert set(get_state_dict(Below())) == {"weight", "bias"} and list(get_state_dict(Data())) == ["w"]


def test_prefix_and_a_bare_tensor():
    assert list(get_state_dict(Linear(), "model.")) == ["model.weight", "model.bias"]
    assert list(get_state_dict(Tensor([1.0]), "w")) == ["w"] and get_state_dict(None) == {}


def test_tensor_type_chooses_what_is_collected():
    found = get_state_dict({"a": 1, "b": [2.5, {"c": "x"}], "t": Tensor([1])}, tensor_type=(int, str))
    assert found == {"a": 1, "b.1.c": "x"}


def test_shared_tensors_have_all_their_names_and_are_one_parameter():
    model, shared = Linear(), Linear()
    model.head, model.other = shared, [shared, shared.weight]
    names = [name for name, tensor in get_state_dict(model).items() if tensor is shared.weight]
    assert names == ["head.weight", "other.0.weight", "other.1"] and len(get_parameters(model)) == 4


def test_a_module_that_holds_itself_is_listed_once():
    parent, child = Linear(), Linear()
    parent.child, child.parent = child, parent
    parent.me, parent.list = parent, []
    parent.list.append(parent.list)
    assert list(get_state_dict(parent)) == ["weight", "bias", "child.weight", "child.bias"]


def test_deep_nesting_is_no_recursion():
    nested: list = [Tensor([1.0])]
    for _ in range(5000):
        nested = [nested]
    assert len(get_parameters(nested)) == 1


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(InputError) as problem:
        get_state_dict({1: Tensor([1.0]), "1": Tensor([2.0])})
    assert str(problem.value).splitlines()[:4] == [
        "two tensors of the model have the same name", "  given:    '1'", "  expected: a name for each",
        "  fix:      rename an attribute or a key: names are joined by dots"]


# ---- loading


def test_loading_changes_values_and_nothing_else(rng):
    model = Linear(3, 2)
    model.weight.requires_grad = True
    weight = rng.random((2, 3), dtype=np.float32)
    before = model.weight
    loaded = load_state_dict(model, {"bias": Tensor([1.0, 2.0]), "weight": Tensor(weight)})
    assert model.weight is before and model.weight.requires_grad is True
    np.testing.assert_array_equal(model.weight.numpy(), weight)
    assert loaded.loaded == ["weight", "bias"] and loaded.missing_keys == loaded.unexpected_keys == []
    (model.weight * 2).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[2.0] * 3] * 2


def test_everything_that_does_not_fit_is_said_at_once_and_nothing_is_loaded():
    model = {"a": Tensor([1.0]), "b": Tensor([1.0, 2.0]), "c": Tensor([1]), "d": Tensor([0.5], dtype=dtypes.float16),
             "e": Tensor([5.0])}
    state = {"a": Tensor([9.0]), "b": Tensor([[1.0]]), "c": Tensor([1.5]), "d": Tensor([1.0]), "z": Tensor([1.0])}
    with pytest.raises(InputError) as problem:
        load_state_dict(model, state)
    assert str(problem.value).rsplit("\n", 1)[0] == """\
the state does not fit the model; nothing was loaded
  given:    1 missing from the state:
              e float32 (1,)
            1 not in the model:
              z
            1 of another shape:
              b: float32 (1, 1) for float32 (2,)
            2 of another type:
              c: float32 (1,) for int32 (1,)
              d: float32 (1,) for float16 (1,)
  expected: the model's names, each with its shape, and values that its type can hold
  fix:      strict=False loads what fits, and tells what it left out"""
    assert model["a"].item() == 1.0


def test_wrong_shapes_alone_are_a_shape_error():
    with pytest.raises(ShapeError, match=r"weight: float32 \(3, 2\) for float32 \(2, 2\)"):
        load_state_dict(Linear(), {"weight": Tensor.zeros(3, 2), "bias": Tensor.zeros(2)})


def test_not_strict_loads_what_fits_and_reports_the_rest(capsys):
    model = {"a": Tensor([1.0]), "b": Tensor([1.0, 2.0]), "c": Tensor([1]), "d": Tensor([0.5], dtype=dtypes.float16)}
    state = {"b": Tensor([[1.0]]), "c": Tensor([1.5]), "d": Tensor([2.0]), "z": "text"}
    report = load_state_dict(model, state, strict=False, verbose=True)
    assert report.loaded == ["d"] and report.missing_keys == ["a"] and report.unexpected_keys == ["z"]
    assert report.mismatched == {"b": "float32 (1, 1) for float32 (2,)", "c": "float32 (1,) for int32 (1,)"}
    assert model["d"].dtype is dtypes.float16 and model["d"].item() == 2.0 and model["c"].item() == 1
    assert capsys.readouterr().out == ("1 tensors loaded\nmissing: a\nnot in the model: z\nnot fitting: "
                                       "b (float32 (1, 1) for float32 (2,)), c (float32 (1,) for int32 (1,))\n")


def test_types_widen_and_scalars_may_have_an_axis():
    model = {"w": Tensor([0.0]), "n": Tensor(0, dtype=dtypes.int64), "b": Tensor([False])}
    load_state_dict(model, {"w": Tensor([1.5], dtype=dtypes.bfloat16), "n": Tensor([7], dtype=dtypes.uint8),
                            "b": Tensor([True])})
    assert model["w"].dtype is dtypes.float32 and model["w"].tolist() == [1.5]
    assert model["n"].dtype is dtypes.int64 and model["n"].shape == () and model["n"].item() == 7


def test_integers_load_as_a_narrower_type_that_holds_them():
    """Positions and indices in files of PyTorch's are int64; here they are int32."""
    model = {"ids": Tensor.arange(4), "none": Tensor([], dtype=dtypes.int32)}
    load_state_dict(model, {"ids": np.array([3, 2, 1, -7], np.int64), "none": np.array([], np.int64)})
    assert model["ids"].dtype is dtypes.int32 and model["ids"].tolist() == [3, 2, 1, -7]
    for strict in (True, False):
        report = None
        with pytest.raises(InputError, match=r"ids: int64 \(4,\) for int32") if strict else nullcontext():
            report = load_state_dict(model, {"ids": np.full(4, 2 ** 40), "none": np.array([], np.int64)}, strict)
        assert model["ids"].tolist() == [3, 2, 1, -7] and (strict or "ids" in report.mismatched)


def test_usual_mistakes_get_the_line_that_mends_them():
    state = {"weight": Tensor.zeros(2, 2), "bias": Tensor.zeros(2)}
    with pytest.raises(InputError, match=r"load_state_dict\(model, state\['state_dict'\]\)"):
        load_state_dict(Linear(), {"epoch": 3, "state_dict": state})
    with pytest.raises(InputError, match=r"\{name.removeprefix\('module.'\): value for name, value in state"):
        load_state_dict(Linear(), {f"module.{name}": value for name, value in state.items()})


def test_long_reports_are_cut_but_counted():
    with pytest.raises(InputError) as problem:
        load_state_dict({}, {f"name{i}": Tensor([1]) for i in range(150)})
    assert "150 not in the model:" in problem.value.given and problem.value.given.endswith("... and 50 more")


def test_consume_empties_the_dictionary_of_what_was_loaded():
    state = {"a": Tensor([1.0]), "z": Tensor([1.0])}
    load_state_dict({"a": Tensor([0.0])}, state, strict=False, consume=True)
    assert list(state) == ["z"]


def test_a_tied_tensor_needs_only_one_of_its_names():
    tied = Tensor([0.0])
    model = {"embed": tied, "head": tied}
    load_state_dict(model, {"embed": Tensor([3.0])})
    assert model["head"] is tied and tied.item() == 3.0


def test_what_is_loaded_twice_has_two_gradients():
    state = {"w": Tensor([1.0, 2.0], dtype=dtypes.float16)}
    online, target = {"w": Tensor.zeros(2)}, {"w": Tensor.zeros(2)}
    for model in (online, target):
        load_state_dict(model, state)
    (online["w"] * 2 + target["w"] * 3).sum().backward()
    assert online["w"].grad.tolist() == [2.0, 2.0] and target["w"].grad.tolist() == [3.0, 3.0]
    load_state_dict(target, get_state_dict(online))
    (online["w"] * 2 + target["w"] * 3).sum().backward()
    assert online["w"].grad.tolist() == [4.0, 4.0] and target["w"].grad.tolist() == [6.0, 6.0]


def test_arrays_can_be_loaded():
    model = {"w": Tensor.zeros(2, 2)}
    load_state_dict(model, {"w": np.arange(4, dtype=np.float32).reshape(2, 2).T})
    assert model["w"].tolist() == [[0.0, 2.0], [1.0, 3.0]]


def test_a_state_dict_of_pytorch_loads_as_it_is(torch):
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2).bfloat16())
    mine = {name: Tensor.zeros(*value.shape, dtype=dtypes.int64 if value.dtype == torch.int64 else dtypes.float32)
            for name, value in theirs.state_dict().items()}
    load_state_dict(mine, theirs.state_dict())
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(mine[name].numpy(), value.float().numpy())


def test_views_of_a_parameter_see_what_is_loaded():
    layer = nn.Linear(2, 1)
    whole, row = layer.weight.detach(), layer.weight.data[0]
    state = {"weight": Tensor([[5.0, 6.0]]), "bias": Tensor([1.0])}
    load_state_dict(layer, state)
    assert whole.tolist() == layer.weight.tolist() == [[5.0, 6.0]] and row.tolist() == [5.0, 6.0]
    row.fill_(0)
    assert layer.weight.tolist() == [[0.0, 0.0]] and state["weight"].tolist() == [[5.0, 6.0]]
    layer(Tensor([[1.0, 2.0]])).sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 2.0]]
