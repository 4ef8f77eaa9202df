"""Get a model's tensors by name, and load them. In: any object. Out: a dict; or the object changed.

Loading compares first: if anything does not fit, all of it is reported at once, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

from glassgrad.base.errors import GlassgradError, InputError, ShapeError
from glassgrad.compiler.graph import DType, UOp, ops as o, promote, substitute
from glassgrad.nn.modules.object_tree import walk
from glassgrad.tensor import checks, realize_and_read as running
from glassgrad.tensor.jit_access import wants_gradient
from glassgrad.tensor.memory.python_values import is_torch
from glassgrad.tensor.memory.storage import is_shared
from glassgrad.tensor.tensor import Tensor

MOST_ROWS = 100         # most names of each kind that a message shows


def get_state_dict(obj: Any, prefix: str = "", tensor_type: type | tuple[type, ...] = Tensor) -> dict[str, Any]:
    """Return every tensor in a model under its dotted name: those in attributes, lists, tuples, dicts and what these
    contain.

    >>> class Model:
    ...     def __init__(self): self.layers = [Tensor([1]), {"bias": Tensor([2])}]
    >>> list(get_state_dict(Model()))
    ['layers.0', 'layers.1.bias']
    """
    kinds = tensor_type if isinstance(tensor_type, tuple) else (tensor_type,)
    if not all(isinstance(kind, type) for kind in kinds):
        raise checks.cannot_take("get_state_dict", "tensor_type", tensor_type, "a type or a tuple of types",
                                 "see help(nn.state.get_state_dict)")
    checks.of_kind("str", "get_state_dict", prefix=prefix)
    found: dict[str, Any] = {}
    for place in walk(obj, prefix, lambda value: isinstance(value, tensor_type)):
        if place.key in getattr(place.holder, "temporary_names", ()):
            continue
        if found.setdefault(place.name, place.value) is not place.value:
            raise InputError("two tensors of the model have the same name", given=repr(place.name),
                             expected="a name for each", fix="rename an attribute or a key: names are joined by dots")
    return found


def get_parameters(obj: Any) -> list[Tensor]:
    """Return every tensor in a model, once each, in the order of `get_state_dict`.

    >>> tied = Tensor([1.0])
    >>> len(get_parameters({"a": tied, "b": tied, "c": Tensor([2.0])}))
    2
    """
    return list({id(tensor): tensor for tensor in get_state_dict(obj).values()}.values())


# -- comparing -------------------------------------------------------------------------------------------------------
class Loaded(NamedTuple):
    """The result of a load: names that were loaded, and names that were not, by reason."""
    loaded: list[str]
    missing_keys: list[str]         # the model has them, the state has not
    unexpected_keys: list[str]      # the state has them, the model has not
    mismatched: dict[str, str]      # name: why its value does not fit


class Comparison(NamedTuple):
    """The comparison of a model with a state."""
    fitting: dict[str, tuple[Tensor, Tensor]]       # name: (the model's tensor, the new value)
    missing: dict[str, Tensor]
    unexpected: list[str]
    shapes: dict[str, str]
    types: dict[str, str]
    hint: str

    @property
    def perfect(self) -> bool:
        return not (self.missing or self.unexpected or self.shapes or self.types)

    def error(self) -> GlassgradError:
        """Return an error with everything that is wrong, in one message."""
        groups = {"missing from the state": [f"{name} {_kind(t)}" for name, t in self.missing.items()],
                  "not in the model": self.unexpected,
                  "of another shape": [f"{name}: {why}" for name, why in self.shapes.items()],
                  "of another type": [f"{name}: {why}" for name, why in self.types.items()]}
        rows = []
        for title, names in groups.items():
            if names:
                more = [f"... and {len(names) - MOST_ROWS} more"] if len(names) > MOST_ROWS else []
                rows += [f"{len(names)} {title}:", *[f"  {row}" for row in names[:MOST_ROWS] + more]]
        kind = ShapeError if self.shapes and not (self.missing or self.unexpected or self.types) else InputError
        return kind("the state does not fit the model; nothing was loaded", given="\n".join(rows),
                    expected="the model's names, each with its shape, and values that its type can hold",
                    fix=self.hint or "strict=False loads what fits, and tells what it left out")


def compare(own: Mapping[str, Tensor], state: Mapping[str, Any], strict: bool, any_type: bool = False) -> Comparison:
    """Compare a state with a model's tensors. With `strict`, the model's type must be able to hold the state's values,
    unless the model is to take `any_type`."""
    result = Comparison({}, {}, [name for name in state if name not in own], {}, {}, "")
    for name, mine in own.items():
        if name not in state:
            if name.rpartition(".")[2] != "num_batches_tracked":     # absent before PyTorch 0.4.1
                result.missing[name] = mine
            continue
        value = _as_tensor(state[name])
        if value is None:
            result.types[name] = f"{type(state[name]).__name__} for {_kind(mine)}"
        elif value.shape != mine.shape and {value.shape, mine.shape} != {(), (1,)}:
            result.shapes[name] = f"{_kind(value)} for {_kind(mine)}"
        elif not any_type and not _type_fits(value, mine.dtype, strict):
            result.types[name] = f"{_kind(value)} for {_kind(mine)}"
        else:
            result.fitting[name] = (mine, value)
    loaded = {id(mine) for mine, _ in result.fitting.values()}          # a tied tensor needs only one of its names
    missing = {name: mine for name, mine in result.missing.items() if id(mine) not in loaded}
    result = result._replace(missing=missing)
    return result._replace(hint=_hint(result, state))


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype.name} {tensor.shape}"


def _type_fits(value: Tensor, own: DType, strict: bool) -> bool:
    """Return whether a value can be loaded as another type: floats as floats, with `strict` only without loss; integers
    if they fit, such as PyTorch's indices, which are int64."""
    given = value.dtype
    integers = given.kind in "iu" and own.kind in "iu"
    if given is own or (integers or given.kind == own.kind) and promote(given, own) is own:
        return True
    if integers:
        low, high = (bound.item() for bound in value.aminmax()) if 0 not in value.shape else (0, 0)
        return own.min <= low and high <= own.max
    return given.kind == own.kind and not strict


def _as_tensor(value: Any) -> Tensor | None:
    """Return one of our tensors, a PyTorch tensor or a NumPy array as a tensor; None for anything else."""
    if isinstance(value, Tensor):
        return value
    return Tensor(value) if is_torch(value) or hasattr(value, "__array_interface__") else None


def _hint(found: Comparison, state: Mapping[str, Any]) -> str:
    """Return a hint about two usual mistakes: the state dictionary is one level deeper, or all names have a prefix."""
    inner = [name for name in found.unexpected if isinstance(state[name], Mapping)]
    if inner and found.missing:
        return f"the tensors may be inside: load_state_dict(model, state[{inner[0]!r}])"
    for name in found.unexpected:
        for missing in found.missing:
            if name.endswith("." + missing):
                prefix = name[:-len(missing)]
                if sum(prefix + m in state for m in found.missing) * 2 > len(found.missing):
                    return "take the prefix off the names: " \
                           f"{{name.removeprefix({prefix!r}): value for name, value in state.items()}}"
    return ""


# -- loading ---------------------------------------------------------------------------------------------------------
def load_state_dict(model: Any, state_dict: MutableMapping[str, Any], strict: bool = True, verbose: bool = False,
                    consume: bool = False, realize: bool = True) -> Loaded:
    """Give a model's tensors the values of a state dictionary (tensors of glassgrad or PyTorch, or arrays), in the
    model's types and on its devices. With `strict`, both must have the same names and shapes, and types that hold the
    values; otherwise what fits is loaded and the rest returned. `consume` removes loaded entries from the dictionary,
    `verbose` prints what was done, `realize=False` leaves conversions lazy.

    >>> model = {"weight": Tensor.zeros(2), "bias": Tensor.zeros(1)}
    >>> load_state_dict(model, {"weight": Tensor([1.0, 2.0])}, strict=False).missing_keys
    ['bias']
    >>> model["weight"].tolist()
    [1.0, 2.0]
    """
    checks.of_kind("Mapping", "load_state_dict", state_dict=state_dict)
    checks.of_kind("bool", "load_state_dict", strict=strict, verbose=verbose, consume=consume, realize=realize)
    return load_into(model, state_dict, strict, verbose, consume, realize)


def load_into(model: Any, state_dict: MutableMapping[str, Any], strict: bool, verbose: bool, consume: bool,
              realize: bool, any_type: bool = False) -> Loaded:
    """Do `load_state_dict` with checked arguments. With `any_type` the model takes the state's types, and only the
    model's names must be there."""
    found = compare(get_state_dict(model), state_dict, strict, any_type)
    needed = found._replace(unexpected=[]) if any_type else found
    if strict and not needed.perfect:
        raise needed.error()
    put(found, realize, any_type)
    report = Loaded(list(found.fitting), list(found.missing), found.unexpected, {**found.shapes, **found.types})
    if consume:
        for name in found.fitting:
            del state_dict[name]
    if verbose:
        tell(report)
    return report


def put(found: Comparison, realize: bool = True, any_type: bool = False) -> None:
    """Give the model's tensors the values that fit, in the model's types or, with `any_type`, in the values' types.
    Views of a tensor see its new value, unless that has another type."""
    waiting: dict[str, list[Tensor]] = {}
    for mine, value in found.fitting.values():
        kind = value.dtype if any_type else mine.dtype
        value = value.to(mine.device).cast(kind).reshape(mine.shape)
        if is_shared(mine) and kind is mine.dtype:
            mine.assign(value)
        else:
            mine.replace(value)
        if mine.uop.base.op is not o.BUFFER:
            waiting.setdefault(mine.device, []).append(mine)
    if realize:
        for first, *others in waiting.values():
            first.realize(*others)
    for mine, _ in found.fitting.values():
        if mine.uop.base.op is o.BUFFER and wants_gradient(mine) is not False and not is_shared(mine):
            mine.replace(mine._with(_separate_leaf(mine.uop)))


def _separate_leaf(node: UOp) -> UOp:
    """Return a new buffer node over the same memory. Tensors loaded from one state into two models, or under two names,
    are different parameters with different gradients."""
    known = node.base.arg
    twin = running.over_memory(known, known.address, known.shape, known.dtype, known.device)
    return substitute([node], {node.base: twin})[0]


def tell(report: Loaded) -> None:
    """Print what a load did."""
    print(f"{len(report.loaded)} tensors loaded")
    rows: list[tuple[str, Any]] = [("missing", report.missing_keys), ("not in the model", report.unexpected_keys),
                                   ("not fitting", [f"{name} ({why})" for name, why in report.mismatched.items()])]
    for title, names in rows:
        if names:
            print(f"{title}: {', '.join(names)}")
