"""What the documents promise exists: commands, their options, and the files that are linked to."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tyro.extras import SubcommandApp

from flowshade import cli

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[str]:
    """Every `flowshade ...` of a document's shell blocks, without comments.

    A lone ellipsis (more of what stands before it, or options that do not matter there) is left out; other
    placeholders, such as CLIP, are words like any other.
    """
    found = []
    for block in re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=";&|<>")
            words.whitespace_split = True
            for chained, run in itertools.groupby(words, lambda word: not set(word) - set(";&|<>")):
                command = [word for word in run if word not in ("...", "[...]")]
                command = list(itertools.dropwhile(re.compile(r"[A-Z_]+=").match, command))
                if not chained and command[:1] == ["flowshade"] and len(command) > 1:
                    found.append(shlex.join(command))
    return found


EXAMPLES = sorted({(d.name, command) for d in DOCUMENTS for command in commands(d.read_text(encoding="utf-8"))})


class Parsed(Exception):
    """A command was read to its end; in its place nothing runs."""


@pytest.fixture(scope="module")
def parse() -> Iterator[Callable[[str], None]]:
    """Parses a command as the command line does, and runs nothing."""

    def silenced(command: Callable) -> Callable:
        def stop(*args: object, **options: object) -> None:
            raise Parsed

        return functools.wraps(command)(stop)

    def silence(app: SubcommandApp) -> None:
        for name, spec in app._subcommands.items():
            if isinstance(spec.target, SubcommandApp):
                silence(spec.target)
            else:
                patch.setitem(app._subcommands, name, dataclasses.replace(spec, target=silenced(spec.target)))

    def parse(command: str) -> None:
        with pytest.raises(Parsed):
            cli.main(shlex.split(command)[1:])

    with pytest.MonkeyPatch.context() as patch:
        silence(cli.app)
        yield parse


@pytest.mark.parametrize(("document", "command"), EXAMPLES, ids=lambda value: value)
def test_documented_commands_parse(document: str, command: str, parse: Callable[[str], None]) -> None:
    parse(command)


@pytest.mark.parametrize(
    "command",
    [
        "flowshade rendr x",
        "flowshade render x",
        "flowshade render x -o y.mp4 --colour red",
        "flowshade eval world -o x",
    ],
)
def test_the_check_sees_mistakes(command: str, parse: Callable[[str], None]) -> None:
    with pytest.raises(SystemExit):
        parse(command)


def test_commands_are_found_in_every_form() -> None:
    text = """
```bash
flowshade play                  # flowshade nonsense
$ flowshade render CLIP \\
    -o "a b.mp4"
make && X=1 flowshade styles
flowshade eval cycles a ... -o b
```
```python
flowshade.render()
```
"""
    assert [shlex.split(command)[1:] for command in commands(text)] == [
        ["play"], ["render", "CLIP", "-o", "a b.mp4"], ["styles"], ["eval", "cycles", "a", "-o", "b"],
    ]  # fmt: skip


def test_some_commands_were_found() -> None:
    assert len({command for _, command in EXAMPLES}) > 40


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]
    missing = [target for target in local if not (document.parent / target).exists()]
    assert not missing
