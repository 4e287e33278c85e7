"""umt5-xxl's encoder as Wan 2.1 uses it: 512 rows a prompt, zero past its end, no mask afterwards."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.errors import PromptError
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.upstream import TEXT_TOKENS

_PLAIN = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201a\u201b", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f", '"')
    | {"\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl"}
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]")
_WIDE = re.compile("[\uff01-\uffef\u3000]")


class Umt5Encoder:
    """Prompts to the text rows that upstream's transformers look at.

    Args:
        model: transformers' `UMT5EncoderModel`.
        tokenizer: the folder with `tokenizer.json` (`google/umt5-xxl`).

    Raises:
        PromptError: the folder holds no tokenizer that can be read.
    """

    def __init__(self, model: nn.Module, tokenizer: Path) -> None:
        from tokenizers import Tokenizer

        path = tokenizer / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower one
            raise PromptError(
                f"{path} is not a tokenizer ({error}); expected umt5-xxl's tokenizer.json. Copy or download it again."
            ) from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._model = model

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> TextContext:
        """Embeds prompts, one at a time.

        Returns:
            Tokens [B, 512, E] in the model's type, zero past each prompt's end; no mask, since Wan looks at zeros too.

        Raises:
            PromptError: a prompt of more than 512 tokens.
        """
        return TextContext(tokens=torch.cat([self._one(text) for text in texts]))

    def _one(self, text: str) -> Float[Tensor, "1 S E"]:
        ids = self._tokenizer.encode(clean(text)).ids
        if len(ids) > TEXT_TOKENS:
            raise PromptError(
                f"the prompt has {len(ids)} tokens and the encoder takes {TEXT_TOKENS}: shorten it "
                f"(it begins {text[:60]!r})."
            )
        device = next(self._model.parameters()).device
        padded = torch.tensor([ids + [0] * (TEXT_TOKENS - len(ids))], device=device)
        mask = torch.arange(TEXT_TOKENS, device=device)[None] < len(ids)
        rows = self._model(input_ids=padded, attention_mask=mask.long()).last_hidden_state  # [1, S, E]
        return rows * mask[..., None]


def clean(text: str) -> str:
    """A prompt as upstream cleans it before it is cut into tokens.

    What ftfy's `fix_text` does to text that is not garbled (HTML entities, ligatures, full-width characters, curly
    quotes, control characters, composed accents), then HTML entities twice more, and one space for any white space.
    """
    if "<" not in text:
        text = html.unescape(text)
    text = text.translate(_PLAIN)
    text = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = _CONTROL.sub("", unicodedata.normalize("NFC", text))
    return " ".join(html.unescape(html.unescape(text)).split())
