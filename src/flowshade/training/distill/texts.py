"""Prompts as the teacher's text encoder has them, kept on disk: training never holds umt5-xxl, which weighs 11.4 GB.

One safetensors file a prompt, named by a hash of its text: the rows of its own tokens in bfloat16. The rows past them
are zero in every prompt (`renderer.umt5`) and are not kept.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.checkpoints.store import load_state, save_state
from flowshade.errors import CheckpointError
from flowshade.progress import Progress
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.umt5 import clean
from flowshade.renderer.upstream import TEXT_TOKENS

FORMAT = "flowshade-text-1"


def key_of(text: str) -> str:
    """A prompt's name; prompts that are cleaned to the same text share it."""
    return hashlib.sha256(clean(text).encode()).hexdigest()[:24]


class TextFolder:
    """Embeddings by prompt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, text: str) -> Path:
        return self.folder / f"{key_of(text)}.safetensors"

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The prompts that are not there yet, each once."""
        return [text for text in {key_of(text): text for text in texts}.values() if not self.path(text).is_file()]

    def write(self, text: str, rows: Float[Tensor, "S E"]) -> None:
        """Keeps a prompt's rows without the zero ones at its end; whole or not at all."""
        used = int(rows.abs().sum(1).nonzero().max()) + 1
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {"rows": rows[:used].to(torch.bfloat16).cpu().contiguous()}
        save_state(state, self.path(text), {"format": FORMAT, "text": clean(text)})

    def read(self, text: str) -> TextContext:
        """A prompt as the teacher looks at it: tokens [1, 512, E] float32, zero past its end.

        Raises:
            CheckpointError: it is not there, or the file is another one.
        """
        path = self.path(text)
        if not path.is_file():
            raise CheckpointError(
                f"{self.folder} lacks the prompt {text[:60]!r}; make it with: flowshade train texts -o FOLDER."
            )
        state, metadata = load_state(path)
        if metadata.get("format") != FORMAT or metadata.get("text") != clean(text):
            raise CheckpointError(f"{path} is not the prompt {text[:60]!r}; remove the file and run again.")
        rows = state["rows"].float()
        tokens = torch.zeros(1, max(TEXT_TOKENS, len(rows)), rows.shape[1])
        tokens[0, : len(rows)] = rows
        return TextContext(tokens=tokens)


def fill(
    folder: TextFolder,
    texts: Sequence[str],
    encode: Callable[[Sequence[str]], TextContext],
    progress: Progress | None = None,
) -> int:
    """Encodes the prompts that are missing; what is there is kept, so it goes on after a stop. Returns how many."""
    missing = folder.missing(texts)
    for done, text in enumerate(missing):
        folder.write(text, encode([text]).tokens[0].float())
        if progress is not None:
            progress(done + 1, len(missing))
    gc.collect()
    return len(missing)
