"""What a judge is asked, and how its answer is read.

One question is one clip, one channel, one axis and one order of the methods. The judge gets a few grids of the same
clip in order of time and gives every method a rank. The axes are those of AlayaRenderer's evaluation (arXiv
2604.02329): semantic, appearance (spatial) and temporal; the words are ours.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flowshade.errors import FlowshadeError
from flowshade.evaluation.vlm.layout import drawn_order, labels

VERSION = 1
"""Of questions and answers; results of different versions are not compared."""

Axis = Literal["semantic", "appearance", "temporal"]
AXES: tuple[Axis, ...] = ("semantic", "appearance", "temporal")
CHANNELS = ("albedo", "normal", "depth", "roughness", "metallic")
DEFAULT_CHANNELS = ("roughness", "metallic")
"""Those that upstream's evaluation judges; no measurement of them is at hand in real footage."""

WHAT_IS_SHOWN = {
    "albedo": "albedo (base colour): the colour of the surface itself, without light, shadow, reflection or highlight",
    "normal": "surface normals in camera space: red grows to the right, green upwards, blue towards the viewer; "
    "black is sky",
    "depth": "depth, up to one factor of scale a method: near is bright, far is dark, sky is black",
    "roughness": "roughness: black is mirror-smooth, white is fully matt",
    "metallic": "metallic: white is bare metal, black is anything else (paint, plastic, wood, stone, cloth, skin, "
    "glass)",
}

QUESTIONS: dict[Axis, str] = {
    "semantic": "Judge semantic consistency: does the map say what the things in the RGB really are? Surfaces of one "
    "material should have one value wherever they are, different materials should differ, and the values should be "
    "plausible for what the things are made of. Do not judge sharpness here.",
    "appearance": "Judge appearance (spatial quality): does the map follow the edges of the things in the RGB, "
    "with the detail that belongs to the surface, and without shadows, highlights, reflections, blur, noise, blocks or "
    "halos that do not belong into it?",
    "temporal": "Judge temporal consistency: the pictures are frames of one clip in order of time. The same surface "
    "should keep its value from frame to frame while it and the camera move; flicker, drift, popping and boiling are "
    "bad. A map that is stable only because it shows nothing of the scene is not good.",
}

SYSTEM = (
    "You are a careful expert in computer graphics who compares estimates of G-buffers. You judge only what you see in "
    "the pictures. You answer with one JSON object and nothing else."
)

PROMPT = """The {count} pictures are moments of one clip in order of time. Each is a grid: the tile "RGB" is the \
camera's picture, the tiles {listed} are estimates by {methods} methods of one map of that moment. The map is {shown}.

{question}

Rank all methods from best to worst: 1 is the best. Methods that are equally good get the same rank. Names and places \
of tiles mean nothing.

Answer with one JSON object of this form, with every method once, and nothing else:
{{"reason": "one or two sentences", "ranks": {{{example}}}}}"""

AGAIN = (
    "That answer cannot be read: {problem} Answer again with one JSON object and nothing else, with a rank for each of "
    "{listed}."
)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One thing to ask."""

    clip: str
    channel: str
    axis: Axis
    repeat: int
    order: tuple[str, ...]
    """Methods in the order of the labels A, B, C, ..."""
    frames: tuple[int, ...]

    @property
    def key(self) -> str:
        """Tells it from all others of a run."""
        return "/".join((self.clip, self.channel, self.axis, str(self.repeat)))

    @property
    def labels(self) -> tuple[str, ...]:
        return labels(len(self.order))

    def text(self) -> str:
        """The prompt in full."""
        names = self.labels
        return PROMPT.format(
            count=len(self.frames),
            listed=", ".join(names),
            methods=len(names),
            shown=WHAT_IS_SHOWN[self.channel],
            question=QUESTIONS[self.axis],
            example=", ".join(f'"{name}": N' for name in names),
        )

    def again(self, problem: str) -> str:
        """What is said after an answer that cannot be read."""
        return AGAIN.format(problem=problem, listed=", ".join(self.labels))

    def record(self) -> dict[str, Any]:
        """For the plan and the answers on disk."""
        return {
            "clip": self.clip,
            "channel": self.channel,
            "axis": self.axis,
            "repeat": self.repeat,
            "order": list(self.order),
            "frames": list(self.frames),
        }


def chosen_frames(axis: Axis, available: int, count: int, stride: int) -> tuple[int, ...]:
    """Which frames a question shows: spread over the clip, or for the temporal axis a run from its middle.

    Args:
        axis: what is judged.
        available: frames of the clip.
        count: how many to show, fewer if the clip is shorter.
        stride: frames from one picture to the next on the temporal axis, fewer if the clip is shorter.
    """
    count = min(count, available)
    if axis != "temporal":
        return tuple(int((index + 0.5) * available / count) for index in range(count))
    stride = max(1, min(stride, (available - 1) // max(1, count - 1)))
    first = (available - 1 - stride * (count - 1)) // 2
    return tuple(first + stride * index for index in range(count))


def questions(
    clips: dict[str, int],
    channel: str,
    axis: Axis,
    methods: Sequence[str],
    *,
    repeats: int,
    seed: int,
    count: int,
    stride: int,
) -> list[Question]:
    """All questions about one channel on one axis.

    Args:
        clips: name -> frames available.
        channel: one of `CHANNELS`.
        axis: one of `AXES`.
        methods: at least two.
        repeats: how often each is asked, in other orders.
        seed: of the orders.
        count: pictures a question.
        stride: see `chosen_frames`.
    """
    return [
        Question(
            clip=clip,
            channel=channel,
            axis=axis,
            repeat=repeat,
            order=drawn_order(methods, seed, f"{clip}/{channel}/{axis}", repeat),
            frames=chosen_frames(axis, available, count, stride),
        )
        for clip, available in clips.items()
        for repeat in range(repeats)
    ]


class MalformedAnswer(FlowshadeError):
    """An answer that does not rank every method once. Its message is one sentence, told to the judge."""


def read_ranks(answer: str, expected: Sequence[str]) -> dict[str, float]:
    """The ranks in an answer by label, as mid-ranks: equal ranks become the mean of the places they share.

    Prose and fences around the JSON object are passed over; nothing else is mended or guessed.

    Args:
        answer: what the judge wrote.
        expected: every label.

    Raises:
        MalformedAnswer: no JSON object with "ranks", several that differ, a label that is missing, unknown or given
            twice, or a rank that is no number from 1 to the number of methods.
    """
    found = [value["ranks"] for value in _objects(answer) if "ranks" in value]
    if not found:
        raise MalformedAnswer('there is no complete JSON object with "ranks" in it.')
    if any(other != found[0] for other in found[1:]):
        raise MalformedAnswer('there are several JSON objects with "ranks" that differ.')
    ranks = found[0]
    if not isinstance(ranks, dict):
        raise MalformedAnswer('"ranks" is no object of labels and numbers.')
    if unknown := sorted(set(ranks) - set(expected)):
        raise MalformedAnswer(f"{unknown[0][:40]!r} is no label of a method.")
    if missing := [label for label in expected if label not in ranks]:
        raise MalformedAnswer(f"there is no rank for {', '.join(missing)}.")
    for label in expected:
        rank = ranks[label]
        if isinstance(rank, bool) or not isinstance(rank, int | float) or not 1 <= rank <= len(expected):
            raise MalformedAnswer(f"the rank of {label} is no number from 1 to {len(expected)}.")
    return mid_ranks({label: float(ranks[label]) for label in expected})


def mid_ranks(values: dict[str, float]) -> dict[str, float]:
    """Values to ranks, the smallest first; equal values share the mean of their places."""
    numbers = list(values.values())
    return {
        name: sum(other < value for other in numbers) + (sum(other == value for other in numbers) + 1) / 2
        for name, value in values.items()
    }


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object in a text; a key given twice makes the answer malformed."""
    decoder = json.JSONDecoder(object_pairs_hook=_no_doubles, parse_constant=_no_constants)
    found, at = [], text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            end = at + 1
        except RecursionError as error:  # beginning again at every bracket of it would take long
            raise MalformedAnswer("there is no complete JSON object, but brackets nested very deeply.") from error
        else:
            found.append(value)
        at = text.find("{", end)
    return found


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise MalformedAnswer("the JSON object gives a label twice.")
    return dict(pairs)


def _no_constants(name: str) -> float:
    raise MalformedAnswer(f"{name} is no rank.")
