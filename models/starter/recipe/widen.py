"""Add a third group of heads to a model trained with two, without changing what it computes.

    python widen.py ../model ../wider

The new heads write nothing at first. In the first two layers one of them looks for earlier
copies of the same token: it compares tokens along fixed random directions, held in the
dimensions that RoPE turns slowest, so that it also works across a long list of tools.
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from generate import ADJECTIVES, NOUNS, OBJECTS, VERBS, for_training

HEADS, DIM, RANK = 3, 32, 96  # new query heads (they share one key head), their size, directions compared
SLOW = [i + half for half in (0, 16) for i in range(10, 16)]


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.copytree(source, out, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    weights = {k: v.float() for k, v in load_file(source / "model.safetensors").items()}
    torch.manual_seed(0)
    pieces = [tokenizer.encode(" " + w, add_special_tokens=False)
              for w in sorted(set(for_training(OBJECTS + VERBS + NOUNS + ADJECTIVES)))]
    embedding = weights["model.embed_tokens.weight"]
    embedding = embedding / embedding.square().mean(-1, keepdim=True).sqrt()
    size = embedding.shape[1]

    def append(name, rows):
        weights[name] = torch.cat([weights[name], rows])

    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn."
        words = (embedding * weights[f"model.layers.{i}.input_layernorm.weight"])[[p[0] for p in pieces if len(p) == 1]]
        _, spread, axes = torch.linalg.svd(words - words.mean(0), full_matrices=False)
        key = torch.zeros(DIM, size)
        key[SLOW] = torch.randn(len(SLOW), RANK) / RANK ** 0.5 / (spread[:RANK] + 0.1 * spread[0]) @ axes[:RANK]
        key *= weights[at + "k_proj.weight"][:DIM].norm() / key.norm()
        if i >= 2:
            key = torch.randn(DIM, size) * 0.05
        append(at + "q_proj.weight", torch.cat([key, torch.randn((HEADS - 1) * DIM, size) * 0.05]))
        append(at + "k_proj.weight", key)
        value = torch.linalg.qr(torch.randn(size, DIM))[0].T
        append(at + "v_proj.weight", value * weights[at + "v_proj.weight"].norm() / 8)
        weights[at + "o_proj.weight"] = torch.cat([weights[at + "o_proj.weight"], torch.zeros(size, HEADS * DIM)], 1)
    save_file({k: v.bfloat16().contiguous() for k, v in weights.items()}, out / "model.safetensors", metadata={"format": "pt"})
    config["num_attention_heads"] += HEADS
    config["num_key_value_heads"] += 1
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
