"""The looks that training asks for and their captions, made once on a machine that has the prompt encoder.

A bank is a folder of two files: `captions.safetensors` (texts and their embeddings) and `looks.json` (the looks,
which captions describe each, and the kind of world those captions speak of).
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flowshade.errors import FlowshadeError
from flowshade.files import write_json
from flowshade.gbuffer.look import LOOKS, Look, sample_look
from flowshade.progress import Progress
from flowshade.renderer.prompt import CAPTIONS_FILE, CaptionBank, PromptEncoder

LOOKS_FILE = "looks.json"
"""The look bank beside the captions (`CAPTIONS_FILE`)."""

CANONICAL_SHARE = 0.5
"""How often training asks for one of the canonical looks, which people ask for by name."""

EMPHASIS = {"night": 3.0, "fog": 2.0, "snow": 2.0, "underwater": 2.0, "neon": 2.0}
"""How much more often than the others the canonical looks that are hardest to learn are asked for."""

WORLDS_DESCRIBED = 40
"""Worlds of each kind whose descriptions go into the captions."""


@dataclass(frozen=True, kw_only=True)
class LookBank:
    """Looks, and which captions of a caption bank describe each."""

    looks: tuple[Look, ...]
    captions: tuple[tuple[int, ...], ...]
    """For each look, rows of the caption bank."""
    kinds: tuple[str | None, ...]
    """The kind of world that a look's captions speak of; None fits all."""

    def draw(self, kind: str, rng: np.random.Generator) -> int:
        """A random look whose captions fit a kind of world; `CANONICAL_SHARE` of the time one that fits all."""
        canonical = rng.random() < CANONICAL_SHARE
        fitting = [index for index, of in enumerate(self.kinds) if of == (None if canonical else kind)]
        weights = np.array([_emphasis(self.looks[index]) if canonical else 1.0 for index in fitting])
        return int(rng.choice(fitting, p=weights / weights.sum()))

    def save(self, path: Path) -> None:
        content = {
            "looks": [dataclasses.asdict(look) for look in self.looks],
            "captions": self.captions,
            "kinds": self.kinds,
        }
        write_json(path, content, indent=None)

    @classmethod
    def load(cls, path: Path) -> LookBank:
        if not path.is_file():
            raise FlowshadeError(f"look bank {path} does not exist; make it with: flowshade train captions -o FOLDER")
        try:
            content = json.loads(path.read_text())
            return cls(
                looks=tuple(Look(**_tuples(look)) for look in content["looks"]),
                captions=tuple(tuple(rows) for rows in content["captions"]),
                kinds=tuple(content["kinds"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FlowshadeError(
                f"look bank {path} cannot be read ({error!r}); make it again with: flowshade train captions -o FOLDER"
            ) from error


def build_banks(
    descriptions: Mapping[str, Sequence[str]],
    encoder: PromptEncoder,
    *,
    looks: int = 450,
    seed: int = 0,
    further: Sequence[str] = (),
    progress: Progress = lambda done, total: None,
) -> tuple[LookBank, CaptionBank]:
    """Draws looks and writes three captions for each: canonical, free, and one of them after a scene description.

    Args:
        descriptions: for each kind of world, sentences that say what is there.
        encoder: embeds the captions.
        looks: how many looks besides the canonical ones, which come first.
        seed: of looks and wordings.
        further: captions that go into the bank too; no look draws them.
        progress: told how many captions are embedded.
    """
    rng = random.Random(seed)
    drawn = [*LOOKS.values(), *(sample_look(rng) for _ in range(looks))]
    kinds: list[str | None] = []
    texts: list[str] = []
    rows: list[tuple[int, ...]] = []
    for index, look in enumerate(drawn):
        kind = None if index < len(LOOKS) else rng.choice(sorted(descriptions))
        scenes = descriptions[kind] if kind else [text for some in descriptions.values() for text in some]
        captions = [look.caption(), look.caption(rng), f"{_sentence(rng.choice(scenes))} {look.caption(rng)}"]
        if kind is None:
            captions.append(look.caption())  # the canonical wording twice as often
        rows.append(tuple(range(len(texts), len(texts) + len(captions))))
        kinds.append(kind)
        texts.extend(captions)
    # What a prompt that says nothing of light means: a sunny day.
    for kind in sorted(descriptions):
        drawn.append(LOOKS["sunny"])
        kinds.append(kind)
        captions = ["", *(_sentence(rng.choice(descriptions[kind])) for _ in range(8))]
        rows.append(tuple(range(len(texts), len(texts) + len(captions))))
        texts.extend(captions)
    bank = LookBank(looks=tuple(drawn), captions=tuple(rows), kinds=tuple(kinds))
    return bank, CaptionBank.build([*texts, *further], encoder, progress)


def world_descriptions(kinds: Sequence[str], worlds: int = WORLDS_DESCRIBED) -> dict[str, list[str]]:
    """Sentences that say what is there, gathered from the first worlds of each kind."""
    from flowshade.world import make_world

    gathered = {
        kind: {text for seed in range(worlds) for text in make_world(kind, seed).descriptions} for kind in kinds
    }
    return {kind: sorted(texts) for kind, texts in gathered.items()}


def _emphasis(look: Look) -> float:
    return next((factor for name, factor in EMPHASIS.items() if LOOKS[name] == look), 1.0)


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no tuples, which colours are."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def save_banks(folder: Path, looks: LookBank, captions: CaptionBank) -> None:
    """Writes both banks to a folder, made if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    captions.save(folder / CAPTIONS_FILE)
    looks.save(folder / LOOKS_FILE)


def has_banks(folder: Path) -> bool:
    """Whether a folder holds both banks."""
    return (folder / CAPTIONS_FILE).is_file() and (folder / LOOKS_FILE).is_file()


def load_banks(folder: Path) -> tuple[LookBank, CaptionBank]:
    """Reads what `save_banks` wrote; raises ValueError or PromptError for what is missing or wrong."""
    return LookBank.load(folder / LOOKS_FILE), CaptionBank.load(folder / CAPTIONS_FILE)
