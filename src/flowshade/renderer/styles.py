"""Styles: named looks kept in a file, and how a style joins a prompt.

A style sets light and weather, a prompt describes the rest; `compose` puts the prompt first and the style's words
after it, as the captions of the training data do. The prompt's own words about light are kept: where the two disagree
the model hears both, so leave light and weather out of a prompt that goes with a style.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from flowshade.errors import StyleError

NEUTRAL = "original"
"""The style that adds nothing."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """A named look."""

    name: str
    caption: str
    """What is added to the prompt; empty adds nothing."""
    look: str | None = None
    """The reference look (a name in `flowshade.gbuffer.look.LOOKS`) whose picture this style asks for, if any."""
    source: str = "built in"
    """The file it came from."""


def load_styles(path: str | Path | None = None) -> dict[str, Style]:
    """All styles by name: the package's, then the user's file, then `path`; a later one replaces an earlier one.

    Args:
        path: a further styles file (TOML, one table a style with `caption` and, if wanted, `look`).

    Raises:
        StyleError: a file is missing, is no TOML, or holds an entry that is no style.
    """
    styles = _parse(files("flowshade.renderer").joinpath("styles.toml").read_text(encoding="utf-8"), "built in")
    if user_file().is_file():
        styles |= _read(user_file())
    if path is not None:
        styles |= _read(Path(path))
    return styles


def user_file() -> Path:
    """Where the user's own styles are looked for."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "flowshade" / "styles.toml"


def find_style(name: str, styles: Mapping[str, Style]) -> Style:
    """The style called `name`.

    Raises:
        StyleError: there is none; the message lists those there are.
    """
    if name not in styles:
        raise StyleError(f"unknown style {name!r}; expected one of {', '.join(styles)}. See: flowshade styles")
    return styles[name]


def compose(prompt: str, style: Style | None = None) -> str:
    """The caption a model is given: the prompt as a sentence, then the style's.

    >>> compose("a quiet street", Style(name="dusk", caption="Dusk, dim lamps."))
    'A quiet street. Dusk, dim lamps.'
    """
    scene = " ".join(prompt.split())
    if style is None or not style.caption:
        return scene
    if not scene:
        return style.caption
    end = "" if scene[-1] in ".!?" else "."
    return f"{scene[0].upper()}{scene[1:].rstrip(' ,;')}{end} {style.caption}"


def _read(path: Path) -> dict[str, Style]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StyleError(f"cannot read the styles file {path} ({error.strerror}); give a TOML file.") from error
    except UnicodeDecodeError as error:
        raise StyleError(f"{path} is not a TOML file (it is not UTF-8 text); give a TOML file.") from error
    return _parse(text, str(path))


def _parse(text: str, source: str) -> dict[str, Style]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StyleError(f"{source} is not a TOML file ({error}).") from error
    return {name: _style(name, table, source) for name, table in tables.items()}


def _style(name: str, table: object, source: str) -> Style:
    advice = f'Write it as:\n[{name}]\ncaption = "light and weather in a few words"'
    if not isinstance(table, dict) or not isinstance(table.get("caption"), str):
        raise StyleError(f"{source}: style {name!r} has no caption. {advice}")
    unknown = set(table) - {"caption", "look"}
    if unknown or not isinstance(table.get("look", ""), str):
        raise StyleError(f"{source}: style {name!r} has {', '.join(sorted(unknown)) or 'a look that is no name'}; "
                         f"expected caption and look only. {advice}")  # fmt: skip
    if name == NEUTRAL and table["caption"]:
        raise StyleError(f"{source}: style {NEUTRAL!r} adds nothing by definition; give your style another name.")
    return Style(name=name, caption=" ".join(table["caption"].split()), look=table.get("look"), source=source)
