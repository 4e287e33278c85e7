"""Who may import whom (docs/design.md), what importing the package costs, and what the public names resolve to."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import flowshade

ROOT = Path(flowshade.__file__).parent
EVERYWHERE = {"errors", "types", "color", "files", "progress"}
BELOW_API = {"nn", "world", "gbuffer", "codec", "renderer", "inverse", "checkpoints", "timing", "provenance", "device"}
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "color": set(),
    "files": set(),
    "device": set(),
    "timing": set(),
    "provenance": set(),
    "progress": set(),
    "nn": set(),
    "world": set(),
    "gbuffer": {"world"},
    "codec": {"nn"},
    "renderer": {"nn", "codec"},
    "inverse": {"nn"},
    "checkpoints": {"codec", "renderer", "inverse", "device"},
    "upstream": BELOW_API,
    "budget": BELOW_API,
    "inversion": BELOW_API,
    "api": {"upstream", "inversion", *BELOW_API},
    "report": {"api", "upstream", *BELOW_API},
    "videos": {"api", "inversion", "report", "upstream", *BELOW_API},
    "play": {"api", "upstream", *BELOW_API},
    "presets": {"*"},
    "cli": {"*"},
    "__init__": {"*"},
    "dataset": {"api", "presets", "upstream", *BELOW_API},
    "curation": {"api", "presets", "upstream", *BELOW_API},
    "evaluation": {"api", "presets", "upstream", *BELOW_API},
    "training": {"api", "presets", "upstream", "budget", "evaluation", "dataset", *BELOW_API},
}
HEAVY = ("torch", "warp", "mujoco", "av", "OpenEXR", "cv2", "transformers", "diffusers", "PIL", "tyro", "rich")
LEARNING = ("torch.optim", "torch.nn")


def part_of(path: Path) -> str:
    if path.name == "__main__.py":
        return "cli"  # it hands over to the command line
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def parts_imported(path: Path) -> set[str]:
    own = {entry.name.removesuffix(".py") for entry in ROOT.iterdir()}
    names = imported_modules(ast.parse(path.read_text(encoding="utf-8")))
    parts = {name.split(".")[1] for name in names if name.startswith("flowshade.")}
    return parts & own


SOURCES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_import_directions(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} is new: say in this table (and docs/design.md) what it may import"
    if ALLOWED[part] == {"*"}:
        return
    wrong = parts_imported(path) - ALLOWED[part] - EVERYWHERE - {part}
    assert not wrong, f"{part} may not import {sorted(wrong)}"


def test_the_check_sees_imports_of_every_form() -> None:
    source = (
        "import flowshade.api\ndef f():\n    from flowshade import training\n    from flowshade.world.camera import x\n"
    )
    names = imported_modules(ast.parse(source))
    assert {"flowshade.api", "flowshade.training", "flowshade.world.camera"} <= names


def test_nothing_imports_relatively() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path} imports relatively"


def test_world_learns_nothing() -> None:
    for path in (ROOT / "world").rglob("*.py"):
        names = imported_modules(ast.parse(path.read_text(encoding="utf-8")))
        assert not [name for name in names if name.startswith(LEARNING)], path


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_is_light() -> None:
    assert not loaded_after("import flowshade") & set(HEAVY)


def test_the_renderer_loads_no_world_and_no_tracer() -> None:
    loaded = loaded_after("import flowshade.renderer.renderer, flowshade.renderer.prompt, flowshade.renderer.styles")
    assert "torch" in loaded
    assert not loaded & {"warp", "mujoco", "av", "OpenEXR", "cv2", "transformers", "diffusers", "tyro", "rich"}


def test_training_loads_neither_videos_nor_worlds() -> None:
    loaded = loaded_after("import flowshade.training.__main__, flowshade.training.run")
    assert "torch" in loaded
    assert not loaded & {"av", "cv2", "OpenEXR", "mujoco", "warp", "transformers", "tokenizers"}


def test_public_names_resolve() -> None:
    for name in flowshade.__all__:
        assert getattr(flowshade, name) is not None
        assert name in dir(flowshade)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = flowshade.nonsense  # pyright: ignore[reportAttributeAccessIssue]
