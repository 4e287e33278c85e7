"""Writes helios.safetensors: a tiny HeliosTransformer3DModel of diffusers, its inputs and its outputs.

python tests/renderer/golden/make_helios.py
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import diffusers
from diffusers.models.transformers.transformer_helios import HeliosTransformer3DModel
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from test_parity import GOLDEN, SHARED, helios_inputs, helios_output, shaken


def main() -> None:
    cases, tensors = {}, {}
    given = None
    for amplify, keep_first, guidance in itertools.product((True, False), repeat=3):
        theirs = HeliosTransformer3DModel(
            num_attention_heads=1,
            attention_head_dim=16,
            in_channels=12,
            out_channels=4,
            num_layers=1,
            rope_dim=(4, 6, 6),
            is_amplify_history=amplify,
            guidance_cross_attn=guidance,
            **(SHARED | {"ffn_dim": 16}),
        )
        if given is None:
            shaken(theirs)
            state = theirs.state_dict()
            given = helios_inputs(12, (4, 6))
            tensors = {f"state.{name}": value for name, value in state.items()}
            tensors |= {f"given.{name}": value for name, value in given.items()}
        theirs.load_state_dict({name: tensors[f"state.{name}"] for name in theirs.state_dict()})
        case = f"amplify={amplify:d} first={keep_first:d} guidance={guidance:d}"
        cases[case] = {"amplify": amplify, "keep_first": keep_first, "guidance": guidance}
        tensors[f"expected.{case}"] = helios_output(theirs.eval(), given, keep_first=keep_first)
    tensors = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    save_file(tensors, GOLDEN, {"cases": json.dumps(cases), "diffusers": diffusers.__version__})


if __name__ == "__main__":
    main()
