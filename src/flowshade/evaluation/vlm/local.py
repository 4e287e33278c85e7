"""A judge on this machine: an image-text model of transformers, from a folder or a name in its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowshade.errors import MissingDependencyError
from flowshade.evaluation.vlm.client import EndpointError, Reply, Turn


class LocalJudge:
    """Asks a transformers model with a chat template; greedy, so that a question has one answer.

    Args:
        model: in eval mode, with `generate`.
        processor: with `apply_chat_template` and `batch_decode`.
        name: for the record.
        max_tokens: of an answer.
    """

    def __init__(self, model: Any, processor: Any, *, name: str, max_tokens: int = 400) -> None:
        self._model, self._processor, self._name, self._max_tokens = model, processor, name, max_tokens

    @staticmethod
    def load(name: str, *, device: str, max_tokens: int = 400) -> LocalJudge:
        """Loads a model of `AutoModelForImageTextToText` from local files only; nothing is downloaded.

        Raises:
            MissingDependencyError: transformers cannot be imported.
            EndpointError: no such model here, or one that cannot be loaded.
        """
        import torch

        try:
            from transformers import AutoModelForImageTextToText, AutoProcessor
        except ImportError as error:
            raise MissingDependencyError(
                f"a local judge needs transformers, which failed to import ({error}); install it with: "
                "pip install 'transformers>=5,<6'"
            ) from error
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        try:
            processor = AutoProcessor.from_pretrained(name, local_files_only=True)
            model = AutoModelForImageTextToText.from_pretrained(name, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise EndpointError(
                f"the judge {name!r} cannot be loaded ({' '.join(str(error).split())[:300]}); expected the folder of "
                "an image-text model, or the name of one in the Hugging Face cache. Download it first: hf download NAME"
            ) from error
        model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
        return LocalJudge(model.eval(), processor, name=name, max_tokens=max_tokens)

    def ask(self, turns: Sequence[Turn]) -> Reply:
        import torch

        inputs = self._processor.apply_chat_template(
            [_message(turn) for turn in turns],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        ).to(self._model.device)
        with torch.no_grad():
            produced = self._model.generate(**inputs, max_new_tokens=self._max_tokens, do_sample=False)
        known = inputs["input_ids"].shape[1]
        text = self._processor.batch_decode(produced[:, known:], skip_special_tokens=True)[0]
        return Reply(text=text, tokens_in=known, tokens_out=produced.shape[1] - known, model=self._name)


def _message(turn: Turn) -> dict[str, Any]:
    import io

    from PIL import Image

    pictures = [{"type": "image", "image": Image.open(io.BytesIO(data)).convert("RGB")} for data in turn.pictures]
    return {"role": turn.role, "content": [*pictures, {"type": "text", "text": turn.text}]}
