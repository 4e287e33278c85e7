"""CUDA graphs: a function's kernels recorded once and launched again together, for functions bound by launching.

A graphed function takes and gives tensors, in any nesting of dataclasses, tuples, lists and dicts, and keeps no state
of its own: what a stream remembers goes in and comes out. It must not change its arguments and must not wait for the
device.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
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


@dataclass
class _Recorded:
    inputs: list[Tensor]
    """What the graph reads."""
    given: list[Tensor]
    """What was last copied there."""
    versions: list[int]
    outputs: list[Tensor]
    """What the graph writes."""
    result: Any
    """The function's result, for its nesting."""
    replay: Replay
    keep: list[Tensor]
    """What the graph reads besides, so that it stays where it is."""


class Graphs:
    """Functions captured on the second call with arguments of one signature, and replayed from the third on.

    The first call of a signature runs as it is: that is when implementations are timed and kernels compiled. Results
    are copies, which later calls leave alone.

    Args:
        capture: records a function (`CudaCapture`).
        context: what functions run in while they are recorded, such as autocast without its cache of weights.
        keep: gives the tensors that functions read besides their arguments and weights.
        capacity: recordings that are kept, the least recently used going first.
    """

    def __init__(
        self,
        capture: Capture,
        *,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        keep: Callable[[], Iterable[Tensor]] = tuple,
        capacity: int = 16,
    ) -> None:
        self._capture = capture
        self._context = context
        self._keep = keep
        self._capacity = capacity
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
            if key not in self._seen:
                self._seen[key] = None
                _forget(self._seen, 8 * self._capacity)
                return function(*arguments)
            self._recorded[key] = self._record(name, function, arguments, tensors)
            _forget(self._recorded, self._capacity)
        self._recorded.move_to_end(key)
        return self._replay(self._recorded[key], tensors)

    def _record(self, name: str, function: Callable[..., Any], arguments: Any, tensors: list[Tensor]) -> _Recorded:
        inputs = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
        held = rebuild(arguments, inputs)
        result: Any = None

        def run() -> list[Tensor]:
            nonlocal result
            with self._context():
                result = function(*held)
            return flatten(result)[0]

        try:
            outputs, replay = self._capture(run)
        except RuntimeError as error:
            raise FlowshadeError(
                f"{name} cannot be captured as a CUDA graph: {str(error).strip().splitlines()[0]} "
                "Render without graphs (speed_up(..., graphs=False))."
            ) from error
        return _Recorded(
            inputs=inputs,
            given=list(tensors),
            versions=[tensor._version for tensor in tensors],
            outputs=outputs,
            result=result,
            replay=replay,
            keep=list(self._keep()),
        )

    def _replay(self, recorded: _Recorded, tensors: list[Tensor]) -> Any:
        for index, tensor in enumerate(tensors):
            same = tensor is recorded.given[index] and tensor._version == recorded.versions[index]
            if not same:
                recorded.inputs[index].copy_(tensor)
                recorded.given[index], recorded.versions[index] = tensor, tensor._version
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
