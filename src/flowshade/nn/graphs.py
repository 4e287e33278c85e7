"""CUDA graphs: a function's kernels recorded once and launched again together, for functions bound by launching.

A graphed function takes and gives tensors, in any nesting of dataclasses, tuples, lists and dicts, and keeps no state
of its own: what a stream remembers goes in and comes out. It must not change its arguments and must not wait for the
device.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flowshade.errors import FlowshadeError

Replay = Callable[[], None]
Capture = Callable[[Callable[[], list[Tensor]]], tuple[list[Tensor], Replay]]
"""Takes a function of no arguments; gives its outputs and what fills them anew from the same inputs."""


def flatten(value: Any) -> tuple[list[Tensor], Hashable]:
    """The tensors inside a value, and a signature of all the rest, their shapes and types included."""
    tensors: list[Tensor] = []
    return tensors, _signature(value, tensors)


def _signature(value: Any, tensors: list[Tensor]) -> Hashable:
    if isinstance(value, Tensor):
        tensors.append(value)
        return (Tensor, tuple(value.shape), value.dtype, value.device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return (type(value), *((name, _signature(getattr(value, name), tensors)) for name in fields))
    if isinstance(value, (tuple, list)):
        return (type(value), *(_signature(item, tensors) for item in value))
    if isinstance(value, dict):
        return (dict, *((key, _signature(item, tensors)) for key, item in value.items()))
    return value


def rebuild(value: Any, tensors: Iterable[Tensor]) -> Any:
    """`value` with other tensors in the places of its own, in the order of `flatten`."""
    return _rebuilt(value, iter(tensors))


def _rebuilt(value: Any, tensors: Any) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return type(value)(**{name: _rebuilt(item, tensors) for name, item in fields.items()})
    if isinstance(value, (tuple, list)):
        return type(value)(_rebuilt(item, tensors) for item in value)
    if isinstance(value, dict):
        return {key: _rebuilt(item, tensors) for key, item in value.items()}
    return value


class CudaCapture:
    """Records a function into a CUDA graph; all graphs of one capture share their memory for intermediates."""

    WARM_UP = 2

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Replay]:
        with torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(self.WARM_UP):
                    function()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Another thread, such as a tracer's, may go on allocating meanwhile.
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outputs = function()
        return outputs, graph.replay


class _Slot:
    """Memory that graphs read an argument from."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = torch.empty_like(tensor)
        self._given: weakref.ref[Tensor] | None = None
        """What was last copied here; a later tensor may take its place in memory, but not in this."""
        self._version = -1

    def take(self, tensor: Tensor) -> None:
        """Copies a tensor here, if it is not here already."""
        if self._given is None or self._given() is not tensor or self._version != tensor._version:
            self.tensor.copy_(tensor)
            self._given, self._version = weakref.ref(tensor), tensor._version


class _Slots:
    """A function's slots, as long as a graph reads them: different signatures share those of one shape."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, weakref.ref[_Slot]] = {}

    def of(self, tensors: Iterable[Tensor]) -> list[_Slot]:
        """A slot of its own for each of a call's tensors."""
        found, counts = [], Counter[Hashable]()
        for tensor in tensors:
            shape = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
            key = shape, counts[shape]
            counts[shape] += 1
            known = self._slots.get(key)
            slot = (None if known is None else known()) or _Slot(tensor)
            self._slots[key] = weakref.ref(slot)
            found.append(slot)
        return found


@dataclass
class _Recorded:
    slots: list[_Slot]
    """What the graph reads."""
    outputs: list[Tensor]
    """What the graph writes."""
    result: Any
    """The function's result, for its nesting."""
    replay: Replay
    keep: list[Tensor]
    """What the graph reads besides, so that it stays where it is."""


class Graphs:
    """Functions captured on the second call with arguments of one signature, and replayed from the third on.

    The first call of a signature runs as it is: that is when implementations are timed and kernels compiled. Arguments
    are copied to where graphs read them, results are copies, which later calls leave alone.

    Args:
        capture: records a function (`CudaCapture`).
        context: what functions run in while they are recorded, such as autocast without its cache of weights.
        keep: gives the tensors that functions read besides their arguments and weights.
        capacity: recordings that are kept, the least recently used going first.
        advice: what to do about a function that cannot be captured.
    """

    def __init__(
        self,
        capture: Capture,
        *,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        keep: Callable[[], Iterable[Tensor]] = tuple,
        capacity: int = 64,
        advice: str = "Render on the plain path: --no-fast, or load_renderer(fast=False).",
    ) -> None:
        self._capture = capture
        self._context = context
        self._keep = keep
        self._capacity = capacity
        self._advice = advice
        self.preparations = 0
        """Calls so far that took longer than those that follow: a signature's first two."""
        self._slots: dict[str, _Slots] = {}
        self._seen: OrderedDict[Hashable, None] = OrderedDict()
        self._recorded: OrderedDict[Hashable, _Recorded] = OrderedDict()

    def call(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)`, from a graph where there is one.

        Args:
            name: of the function; the same name is the same function.

        Raises:
            FlowshadeError: the function cannot be captured.
        """
        tensors, signature = flatten(arguments)
        key = name, signature
        if key not in self._recorded:
            self.preparations += 1
            if key not in self._seen:
                self._seen[key] = None
                _forget(self._seen, 8 * self._capacity)
                return function(*arguments)
            self._recorded[key] = self._record(name, function, arguments, tensors)
            _forget(self._recorded, self._capacity)
        self._recorded.move_to_end(key)
        return self._replay(self._recorded[key], tensors)

    def _record(self, name: str, function: Callable[..., Any], arguments: Any, tensors: list[Tensor]) -> _Recorded:
        slots = self._slots.setdefault(name, _Slots()).of(tensors)
        for slot, tensor in zip(slots, tensors, strict=True):
            slot.take(tensor)
        held = rebuild(arguments, [slot.tensor for slot in slots])
        result: Any = None

        def run() -> list[Tensor]:
            nonlocal result
            with self._context():
                result = function(*held)
            return flatten(result)[0]

        try:
            outputs, replay = self._capture(run)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise FlowshadeError(f"{name} cannot be captured as a CUDA graph: {reason}. {self._advice}") from error
        return _Recorded(slots=slots, outputs=outputs, result=result, replay=replay, keep=list(self._keep()))

    def _replay(self, recorded: _Recorded, tensors: list[Tensor]) -> Any:
        for slot, tensor in zip(recorded.slots, tensors, strict=True):
            slot.take(tensor)
        recorded.replay()
        return rebuild(recorded.result, [output.clone() for output in recorded.outputs])


def staged(graphs: Graphs | None, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, by graphs where there are any and no gradients are asked for."""
    if graphs is None or torch.is_grad_enabled():
        return function(*arguments)
    return graphs.call(name, function, *arguments)


def _forget(entries: OrderedDict[Hashable, Any], capacity: int) -> None:
    while len(entries) > capacity:
        entries.popitem(last=False)
