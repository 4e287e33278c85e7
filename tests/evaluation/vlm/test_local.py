"""A local judge: a tiny image-text model with random weights, saved and loaded as a real one would be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from flowshade.evaluation.vlm.client import EndpointError, Turn
from flowshade.evaluation.vlm.layout import png
from flowshade.evaluation.vlm.local import LocalJudge

TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}\n{% endfor %}assistant:"
)
LETTERS = [chr(code) for code in range(32, 127)] + ["\n"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    words = {name: index for index, name in enumerate(["<pad>", "<unk>", "<s>", "</s>", "<image>", *LETTERS])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.add_special_tokens({"additional_special_tokens": ["<image>"]})
    pictures = transformers.CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = transformers.LlavaProcessor(
        image_processor=pictures, tokenizer=fast, patch_size=14, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=TEMPLATE,
    )  # fmt: skip
    vision = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    text = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        pad_token_id=0, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlavaForConditionalGeneration(config)
    folder = tmp_path_factory.mktemp("judge")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_a_saved_model_answers(tiny: Path) -> None:
    judge = LocalJudge.load(str(tiny), device="cpu", max_tokens=7)
    pictures = tuple(png(np.full((28, 28, 3), value, np.uint8)) for value in (0, 255))
    turns = [Turn("system", "Judge."), Turn("user", "Which is best?", pictures)]
    reply = judge.ask(turns)
    assert reply == judge.ask(turns)  # greedy
    assert reply.tokens_out is not None
    assert 0 < reply.tokens_out <= 7
    text = len("system:Judge.user:Which is best?assistant:")  # templates drop the line end after a block
    assert reply.tokens_in == text + 2 * 4  # four patches a picture
    assert reply.model == str(tiny)


def test_a_model_that_is_not_here_is_not_downloaded() -> None:
    with pytest.raises(EndpointError, match="cannot be loaded"):
        LocalJudge.load("nobody/no-such-model", device="cpu")
