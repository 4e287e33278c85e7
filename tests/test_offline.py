"""`tools/offline.py`: kernels compiled here are found there, in another folder, by another process."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
import warp as wp

ROOT = Path(__file__).parents[1]
ARCH = 90

THERE = f"""
import sys
import warp as wp
from warp._src import build
wp.init()
import peak
import flowshade.gbuffer.kernels
assert flowshade.gbuffer.kernels.__file__.startswith(sys.argv[1])
def refuse(*args, **kwargs):
    raise SystemExit("compiled again")
build.build_cuda = refuse
print(*wp.compile_aot_module(peak, arch={ARCH}))
"""


@pytest.fixture
def offline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("offline", ROOT / "tools" / "offline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def there(folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Asks for the kernels in a process of its own, whose sources lie in `folder`."""
    environment = {"PYTHONPATH": f"{folder / 'src'}:{folder / 'benchmarks'}", "WARP_CACHE_PATH": str(cache)}
    command = [sys.executable, "-c", THERE, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_kernels_are_compiled_once(offline: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wp.init()
    if ARCH not in wp.get_cuda_supported_archs():
        pytest.skip("Warp on this platform does not compile for GPUs")
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules = {module.name: module for module in offline._kernel_modules()}
    names = ("kernels", "light_kernels", "path_kernels", "ray_kernels", "wave_kernels")
    assert set(modules) == {"peak", *(f"flowshade.gbuffer.{name}" for name in names)}

    kit = tmp_path / "kit"
    (kit / "captions").mkdir(parents=True)
    with tarfile.open(kit / "warp.tar.xz.00", "w:xz"):
        pass  # Warp is installed here
    offline._pack_kernels(kit, [modules["peak"]], ARCH)
    packed = [kit / offline.KERNELS, kit / "warp.tar.xz.00"]
    (kit / "kit.json").write_text(json.dumps({path.name: offline._digest(path) for path in packed}))
    assert sorted(path.name for path in kit.iterdir()) == ["captions", "kernels.tar.xz", "kit.json", "warp.tar.xz.00"]
    offline.unpack(kit, tmp_path / "there")
    assert f'WARP_CACHE_PATH="{tmp_path / "there" / "warp-cache"}"' in (tmp_path / "there" / "env.sh").read_text()

    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "src", elsewhere / "src", ignore=shutil.ignore_patterns("weights", "__pycache__"))
    shutil.copytree(ROOT / "benchmarks", elsewhere / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    found = there(elsewhere, tmp_path / "there" / "warp-cache")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].endswith(f".sm{ARCH}.cubin")
    missed = there(elsewhere, tmp_path / "empty")
    assert missed.returncode != 0 and "compiled again" in missed.stderr


def test_an_unknown_gpu_is_refused_before_anything_is_packed(offline: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not for --arch 12"):
        offline.pack(tmp_path / "kit", "3.12", [], 0, 12)
    assert not (tmp_path / "kit").exists()
