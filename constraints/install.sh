#!/usr/bin/env bash
# Installs the package at the repository root, editable, into a virtual environment.
#   constraints/install.sh VENV SPEC        for example: constraints/install.sh .venv '.[dev]'
# PYTHON names the interpreter; by default the first of python3, 3.13, 3.12, 3.11 that is in range.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1 spec=$2
torch_index=https://download.pytorch.org/whl/cpu

in_range() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

choose_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if in_range "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "flowshade needs Python 3.11, 3.12 or 3.13; found none. Install one, or name it: make PYTHON=/path/to/python" >&2
    exit 2
}

has_nvidia_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

reachable() {
    "$venv/bin/python" - "$1" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=5).close()
PY
}

if ! in_range "$venv/bin/python"; then
    python=$(choose_python)
    echo "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

options=(--disable-pip-version-check --no-input)
if has_nvidia_gpu; then
    echo "NVIDIA GPU found: installing the CUDA build of PyTorch"
else
    options+=(-c constraints/cpu.txt)
    if reachable "$torch_index"; then
        options+=(--extra-index-url "$torch_index")
    else
        # pip's own settings (a mirror, a folder of wheels) may still offer the CPU build.
        echo "no NVIDIA GPU and $torch_index cannot be reached: taking PyTorch from pip's usual places"
    fi
fi
"$venv/bin/python" -m pip install "${options[@]}" -e "$spec"
"$venv/bin/python" -c 'import torch; print("PyTorch", torch.__version__, "CUDA" if torch.cuda.is_available() else "CPU")'
