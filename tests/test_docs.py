"""What the documents promise exists: commands, their options, and the files that are linked to."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flowshade.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUPS = ("world", "models", "data", "eval")


def commands() -> list[str]:
    """Every `flowshade ...` line of a shell block, without comments."""
    found = []
    for document in DOCUMENTS:
        for block in re.findall(r"```bash\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL):
            lines = [re.sub(r"\s+#.*", "", line).strip() for line in block.splitlines()]
            found += [line for line in lines if line.startswith("flowshade ") and "..." not in line]
    return sorted(set(found))


@pytest.mark.parametrize("command", commands())
def test_documented_commands_have_their_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    verb = words[:2] if words[0] in GROUPS else words[:1]
    with pytest.raises(SystemExit) as stopped:
        main([*verb, "--help"])
    assert stopped.value.code == 0
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out))
    given = {word.replace("_", "-") for word in words if re.fullmatch(r"--?[a-z][\w-]*", word)}
    missing = given - options
    assert not missing, f"{' '.join(verb)} has no {missing}"


def test_some_commands_were_found() -> None:
    assert len(commands()) > 8


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]
    missing = [target for target in local if not (document.parent / target).exists()]
    assert not missing
