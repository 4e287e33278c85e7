"""Takes what tracing and training need to a machine that has torch, but neither a network nor an installer.

    python tools/offline.py pack kit --python 3.12 --arch 90   # here: wheels, Warp, captions, kernels; parts of 25 MiB
    python3 tools/offline.py unpack kit /tmp/flowshade         # there, once all parts have arrived: needs only Python
    . /tmp/flowshade/env.sh && python3 -m flowshade.training compact -o run --captions /tmp/flowshade/captions

The kit holds binary wheels of `PACKAGES` in the versions installed here, Warp without its compiler for CPUs (its CUDA
kernels need none), and the captions and looks that training asks for. `kit.json` lists every part with its SHA-256.
Packing continues where it was stopped.

`--arch 90` compiles the tracer's kernels for compute capability 9.0 (an H200), for which no GPU is needed, so that the
machine there compiles none. It takes minutes once; Warp's cache here keeps them. They are found by a hash of their
source: bring the same checkout, and pack again after a kernel has changed. Those that do not fit (other source, another
GPU) are compiled at their first use, as without `--arch`. `unpack` puts them where `env.sh` has Warp look for them.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

PACKAGES = ("jaxtyping", "wadler_lindig", "mujoco-core", "OpenEXR", "tyro", "docstring_parser", "typeguard")
"""What torch's own surroundings lack; `--packages` adds to them."""
WARP = "warp-lang"
LEFT_OUT = ("warp/bin/warp-clang.so", "warp/examples", "warp/tests")
KERNELS_OF = ("flowshade.gbuffer.trace", "peak")
"""What is imported for its kernels, and those of what it imports: training and `benchmarks/trace.py` use no others."""
NOT_PACKED = ("plain_", "packet_")
"""How the names of modules begin that only `Tracer(plain=True)` (they would take longest) or only a CPU uses."""
KERNELS = "kernels.tar.xz"
PART = 25 * 2**20
CHUNK = 2**20


def pack(kit: Path, python: str, packages: list[str], captions_seed: int, arch: int | None) -> None:
    if arch is not None:
        _check_arch(arch)
    kit.mkdir(parents=True, exist_ok=True)
    wheels = kit / "wheels"
    names = [f"{name}=={_installed(name)}" for name in packages]
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 27, 28, 34)]
    _run("pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--python-version={python}",
         *platforms, "--platform=any", "-d", str(wheels), *names)  # fmt: skip
    if not (kit / "warp.done").exists():
        _pack_warp(kit)
        (kit / "warp.done").touch()
    captions = kit / "captions"
    if not captions.is_dir():
        _run("flowshade.cli", "train", "captions", "-o", str(captions), "--seed", str(captions_seed))
    (kit / KERNELS).unlink(missing_ok=True)  # maybe of another source or GPU
    if arch is not None:
        _pack_kernels(kit, _kernel_modules(), arch)
    files = sorted(path for path in kit.rglob("*") if path.is_file() and path.name not in ("kit.json", "warp.done"))
    listing = {str(path.relative_to(kit)): _digest(path) for path in files}
    (kit / "kit.json.tmp").write_text(json.dumps(listing, indent=1) + "\n")
    (kit / "kit.json.tmp").replace(kit / "kit.json")
    for path in files:
        print(f"{path.stat().st_size / 2**20:7.1f} MiB  {path.relative_to(kit)}")


def unpack(kit: Path, target: Path) -> None:
    listing = json.loads((kit / "kit.json").read_text())
    wrong = [name for name, digest in listing.items() if not (kit / name).is_file() or _digest(kit / name) != digest]
    if wrong:
        sys.exit(f"{kit} lacks, or has in another state than it was packed: {', '.join(wrong)}; bring these again.")
    site = target / "site"
    site.mkdir(parents=True, exist_ok=True)
    for wheel in sorted((kit / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    parts = sorted(kit.glob("warp.tar.xz.*"))
    joined = target / "warp.tar.xz"
    with joined.open("wb") as whole:
        for part in parts:
            with part.open("rb") as piece:
                shutil.copyfileobj(piece, whole, CHUNK)
    with lzma.open(joined) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(site, filter="data")
    joined.unlink()
    if (kit / KERNELS).exists():
        with tarfile.open(kit / KERNELS, "r:xz") as archive:
            archive.extractall(target / "warp-cache", filter="data")
    shutil.copytree(kit / "captions", target / "captions", dirs_exist_ok=True)
    source = Path(__file__).resolve().parent.parent / "src"
    lines = [
        f'export PYTHONPATH="{site}:{source}${{PYTHONPATH:+:$PYTHONPATH}}"',
        f'export WARP_CACHE_PATH="{target / "warp-cache"}"',
        'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"',
    ]
    (target / "env.sh").write_text("\n".join(lines) + "\n")
    print(f"unpacked into {target}; next: . {target / 'env.sh'}")


def _pack_warp(kit: Path) -> None:
    """Warp's wheel as it is installed here, compressed as hard as it goes and cut into parts."""
    import warp

    package = Path(warp.__file__).parent
    with tempfile.TemporaryDirectory(dir=kit) as folder:
        archive = Path(folder) / "warp.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(package, "warp", filter=_wanted)
        print(f"compressing {archive.stat().st_size / 2**20:.0f} MiB of Warp; this takes some minutes", flush=True)
        if shutil.which("xz"):
            subprocess.run(["xz", "-9", "-T0", str(archive)], check=True)
        else:
            with archive.open("rb") as plain, lzma.open(f"{archive}.xz", "wb", preset=9) as stream:
                shutil.copyfileobj(plain, stream, CHUNK)
        with Path(f"{archive}.xz").open("rb") as stream:
            for index, part in enumerate(iter(lambda: stream.read(PART), b"")):
                (kit / f"warp.tar.xz.{index:02d}").write_bytes(part)


def _check_arch(arch: int) -> None:
    import warp as wp

    wp.init()
    known = wp.get_cuda_supported_archs()
    if arch not in known:
        sys.exit(f"Warp here compiles for {', '.join(map(str, known)) or 'no GPU at all'}, not for --arch {arch}.")


def _kernel_modules() -> list[Any]:
    """Warp's modules that hold kernels of `KERNELS_OF` for a GPU, plain ones aside."""
    import warp as wp

    sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
    for name in KERNELS_OF:
        importlib.import_module(name)
    ours = [module for name, module in sys.modules.items() if name.split(".")[0] in ("flowshade", "peak")]
    kernels = [value for module in ours for value in vars(module).values() if isinstance(value, wp.Kernel)]
    modules = {kernel.module.name: kernel.module for kernel in kernels}
    return [modules[name] for name in sorted(modules) if not name.rpartition(".")[2].startswith(NOT_PACKED)]


def _pack_kernels(kit: Path, modules: list[Any], arch: int) -> None:
    """Compiles for `arch`, as Warp would at their first use, and takes what it would look for then."""
    import warp as wp

    partial = kit / f"{KERNELS}.tmp"
    with tarfile.open(partial, "w:xz") as archive:
        for index, module in enumerate(modules, 1):
            start = time.perf_counter()
            print(f"kernels {index}/{len(modules)}, {module.name}: ", end="", flush=True)
            (binary,) = wp.compile_aot_module(module, arch=arch, use_ptx=False)
            print(f"{binary.stat().st_size / 2**20:.1f} MiB, {time.perf_counter() - start:.0f} s", flush=True)
            for path in (binary, binary.with_name(f"{binary.parent.name}.meta")):
                archive.add(path, Path(wp.config.version, binary.parent.name, path.name))
    partial.replace(kit / KERNELS)


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    out = member.name.startswith(LEFT_OUT) or "__pycache__" in member.name
    return None if out else member


def _installed(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def _run(*module: str) -> None:
    subprocess.run([sys.executable, "-m", *module], check=True)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack", help="make a kit, where there is a network and Flowshade is installed")
    packing.add_argument("kit", type=Path, help="its folder")
    packing.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="version there")
    packing.add_argument("--packages", nargs="*", default=[], help="further packages to take along")
    packing.add_argument("--seed", type=int, default=0, help="of the looks in the captions")
    packing.add_argument("--arch", type=int, help="compile the tracer's kernels for this GPU: 90 for an H200")
    unpacking = verbs.add_parser("unpack", help="lay a kit out")
    unpacking.add_argument("kit", type=Path, help="its folder")
    unpacking.add_argument("target", type=Path, help="a folder outside the checkout")
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options.kit, options.python, [*PACKAGES, *options.packages], options.seed, options.arch)
    else:
        unpack(options.kit.resolve(), options.target.resolve())


if __name__ == "__main__":
    main()
