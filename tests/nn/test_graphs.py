"""The bookkeeping of CUDA graphs, with a capture that replays on a CPU, and real graphs where there is a GPU."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from flowshade.errors import FlowshadeError
from flowshade.nn.graphs import CudaCapture, Graphs, flatten, rebuild, staged
from tests.nn.replay import replaying


@dataclass(frozen=True)
class Pair:
    left: Tensor
    right: Tensor | None
    size: int = 0


def doubled(pair: Pair, state: dict[str, Tensor], steps: int) -> tuple[Pair, dict[str, Tensor]]:
    x = pair.left + (0 if pair.right is None else pair.right) + state.get("sum", torch.zeros_like(pair.left))
    for _ in range(steps):
        x = 2 * x
    return Pair(x, None, pair.size), {"sum": x}


def test_values_come_apart_and_together() -> None:
    value = (Pair(torch.ones(2), None, 3), {"a": [torch.zeros(1), "text"]}, None)
    tensors, signature = flatten(value)
    assert [tuple(tensor.shape) for tensor in tensors] == [(2,), (1,)]
    other = rebuild(value, [torch.full((2,), 5.0), torch.full((1,), 6.0)])
    assert other[0].left.tolist() == [5, 5] and other[0].size == 3 and other[1]["a"][0].item() == 6
    assert flatten(other)[1] == signature
    for changed in (
        (Pair(torch.ones(3), None, 3), *value[1:]),
        (Pair(torch.ones(2), None, 4), *value[1:]),
        (Pair(torch.ones(2), torch.ones(2), 3), *value[1:]),
        (Pair(torch.ones(2, dtype=torch.float64), None, 3), *value[1:]),
    ):
        assert flatten(changed)[1] != signature


def test_the_second_call_is_captured_and_state_goes_through() -> None:
    captures: list[int] = []
    graphs, state, plain_state = Graphs(replaying(captures)), {}, {}
    for call in range(5):
        pair = Pair(torch.full((2,), call + 1.0), None)
        result, state = graphs.call("doubled", doubled, pair, state, 1)
        expected, plain_state = doubled(pair, plain_state, 1)
        assert torch.equal(result.left, expected.left)
        assert len(captures) == (0 if call < 2 else 1)  # without a state, first with one, then captured


def test_results_outlive_later_calls() -> None:
    graphs = Graphs(replaying([]))
    results = [graphs.call("doubled", doubled, Pair(torch.full((2,), float(i)), None), {}, 1)[0] for i in range(5)]
    assert [result.left[0].item() for result in results] == [0, 2, 4, 6, 8]


def test_an_input_that_is_changed_in_place_is_copied_again() -> None:
    graphs, left, right = Graphs(replaying([])), torch.ones(2), torch.ones(2)
    pair = Pair(left, right)
    made = [graphs.call("doubled", doubled, pair, {}, 1)[0].left[0].item() for _ in range(3)]
    left.add_(1)
    made += [graphs.call("doubled", doubled, pair, {}, 1)[0].left[0].item() for _ in range(2)]
    assert made == [4, 4, 4, 6, 6]


def test_signatures_share_memory_for_arguments_and_calls_do_not_mix_theirs() -> None:
    graphs = Graphs(replaying([]), capacity=2)
    left, right = torch.ones(2), torch.full((2,), 2.0)
    for _ in range(3):
        for steps in (1, 2):
            result, _ = graphs.call("doubled", doubled, Pair(left, right), {}, steps)
            assert result.left.tolist() == [3.0 * 2**steps] * 2
        left, right = right.clone(), left.clone()
    one, two = graphs._recorded.values()
    assert one.slots == two.slots and len({slot.tensor.data_ptr() for slot in one.slots}) == 2
    freed = weakref.ref(one.slots[0])
    del one, two
    for size in (3, 4):
        for _ in range(2):
            graphs.call("neg", torch.neg, torch.ones(size))
    assert freed() is None, "nothing reads it any more"


def test_other_shapes_steps_and_functions_are_captured_anew() -> None:
    captures: list[int] = []
    graphs = Graphs(replaying(captures))
    for size, steps in ((2, 1), (3, 1), (2, 2)):
        for _ in range(3):
            result, _ = graphs.call("doubled", doubled, Pair(torch.ones(size), None), {}, steps)
            assert result.left.tolist() == [2.0**steps] * size
    assert len(captures) == 3
    for _ in range(3):
        assert graphs.call("other", torch.neg, torch.ones(2)).tolist() == [-1, -1]
    assert len(captures) == 4


def test_the_least_recently_used_is_forgotten() -> None:
    captures: list[int] = []
    graphs = Graphs(replaying(captures), capacity=2)
    for size in (1, 2, 3):
        for _ in range(2):
            graphs.call("neg", torch.neg, torch.ones(size))
    assert len(captures) == 3
    for size, known in ((3, True), (2, True), (1, False)):
        before = len(captures)
        graphs.call("neg", torch.neg, torch.ones(size))
        assert (len(captures) == before) == known


def test_what_else_is_read_is_kept() -> None:
    table = [torch.ones(2)]
    graphs = Graphs(replaying([]), keep=lambda: table)
    for _ in range(2):
        graphs.call("add", lambda x: x + table[0], torch.ones(2))
    assert next(iter(graphs._recorded.values())).keep[0] is table[0]


def test_a_failure_says_so() -> None:
    def refusing(function):
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = Graphs(refusing)
    graphs.call("neg", torch.neg, torch.ones(1))
    with pytest.raises(FlowshadeError, match=r"neg cannot be captured .* not permitted.*\. .*fast=False"):
        graphs.call("neg", torch.neg, torch.ones(1))


def test_gradients_go_past_graphs() -> None:
    captures: list[int] = []
    graphs, x = Graphs(replaying(captures)), torch.ones(2, requires_grad=True)
    for _ in range(3):
        assert staged(graphs, "neg", torch.neg, x).requires_grad
    assert not captures


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_real_graphs() -> None:
    graphs, state, plain_state = Graphs(CudaCapture(torch.device("cuda"))), {}, {}
    for call in range(6):
        pair = Pair(torch.full((1000,), call + 1.0, device="cuda"), torch.rand(1000, device="cuda"))
        result, state = graphs.call("doubled", doubled, pair, state, 2)
        expected, plain_state = doubled(pair, plain_state, 2)
        torch.testing.assert_close(result.left, expected.left)
    assert len(graphs._recorded) == 1
