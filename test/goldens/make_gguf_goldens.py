"""Blocks of every quantised GGUF type with random bytes, and what llama.cpp's gguf package makes of them.

    python3 test/goldens/make_gguf_goldens.py        needs gguf (0.19), numpy

gguf-blocks.json: type -> {raw: hex of the blocks, bits: hex of the little-endian float32 values}.
"""
import json
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from gguf.constants import GGML_QUANT_SIZES

BLOCKS = 3
# Byte offsets of the f16 scales of a block: random bits there may be no numbers.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}


def main() -> None:
    random = np.random.default_rng(7)
    golden = {}
    for name, offsets in SCALES.items():
        kind = GGMLQuantizationType[name]
        _, size = GGML_QUANT_SIZES[kind]
        raw = random.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
        for offset in offsets:
            scales = random.normal(0, 0.05, BLOCKS).astype("<f2")
            raw[:, offset : offset + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
        values = dequantize(raw, kind).astype("<f4")
        golden[name] = {"raw": raw.tobytes().hex(), "bits": values.tobytes().hex()}
    path = Path(__file__).parent / "gguf-blocks.json"
    path.write_text(json.dumps(golden, indent=1) + "\n")


main()
