"""Widen the heads of a model from 32 to 64 and renew its third group, without changing what it computes.

    python widen.py ../model ../wider

RoPE theta goes from 10^4 to 10^8, so that the first half of the 32 frequencies are the old 16: the old
dimensions keep their angles. The new ones turn so slowly that they compare tokens at any distance; a long
list of tools needs that. The third group of heads writes nothing at first. In layers 1 to 3 its heads look
for other tokens with the same letters: they compare the directions that tell words apart best (linear
discriminants of the layer's inputs, where the case of a word and the space before it do not count).
"""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from generate import Source, conversation, for_training
from train import encode, plain_letters

GROUPS, HEADS, OLD, NEW, THETA = 3, 3, 32, 64, 1e8  # HEADS query heads share one key head
KEPT = [i for i in range(NEW) if i % (NEW // 2) < OLD // 2]  # the old dimensions among the new
FRESH = [i for i in range(NEW) if i not in KEPT]
MATCHING, GAIN = (1, 2, 3), 1.5


def same_word_axes(source, tokenizer, layers, conversations=240):
    """For each layer the axes, as rows, along which the inputs of its attention differ most between words."""
    letters = plain_letters(tokenizer)
    g = Source(0, extra=for_training(sorted({t.removeprefix("\u0120") for t in letters.values() if len(t) > 2})))
    model, found = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval(), {i: {} for i in layers}
    for _ in range(conversations):
        ids = encode(tokenizer, conversation(g))[0][:512]
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for i in layers:
            inputs = model.model.layers[i].input_layernorm(states[i])[0]
            for token, x in zip(ids, inputs.detach()):
                if token in letters:
                    found[i].setdefault(letters[token].removeprefix("\u0120").lower(), []).append(x)
    for i in layers:
        words = [torch.stack(xs[:40]) for xs in found[i].values() if len(xs) >= 4]
        centres = torch.stack([w.mean(0) for w in words])
        within = torch.cat([w - c for w, c in zip(words, centres)])
        within = within.T @ within / len(within)
        within += 0.05 * within.diagonal().mean() * torch.eye(len(within))
        root = torch.linalg.inv(torch.linalg.cholesky(within))  # whitens what differs within a word
        mean = (root @ centres.mean(0))
        between = (centres @ root.T)
        between = between - between @ mean[:, None] / (mean @ mean) * mean  # nothing that all words share
        _, spread, axes = torch.linalg.svd(between, full_matrices=False)
        print(f"layer {i}: {len(words)} words, spread {spread[0] / len(words) ** 0.5:.1f} to "
              f"{spread[len(FRESH) - 1] / len(words) ** 0.5:.1f}")
        yield i, axes[:len(FRESH)] @ root


def main():
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.copytree(source, out, dirs_exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    weights = {k: v.float() for k, v in load_file(source / "model.safetensors").items()}
    torch.manual_seed(0)
    axes = dict(same_word_axes(source, tokenizer, MATCHING))
    size, both = config["hidden_size"], GROUPS - 1  # the old groups that stay
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn."

        def spread_out(name, heads, new=0.0):
            old = weights[at + name].view(-1, OLD, size)[:heads]
            wide = torch.randn(heads, NEW, size) * new * old.square().mean().sqrt()
            wide[:, KEPT] = old
            return wide

        q, k = spread_out("q_proj.weight", both * HEADS), spread_out("k_proj.weight", both, new=0.3)
        v = spread_out("v_proj.weight", both, new=1.0)
        o = torch.zeros(size, GROUPS * HEADS, NEW)
        o[:, :both * HEADS, KEPT] = weights[at + "o_proj.weight"].view(size, -1, OLD)[:, :both * HEADS]
        scale = k[:, KEPT].square().mean().sqrt()
        new_k, new_q = torch.randn(NEW, size) * scale, torch.randn(HEADS, NEW, size) * scale
        if i in MATCHING:
            same = axes[i] * (scale / axes[i].square().mean().sqrt())
            new_k *= 0.05
            new_q[:2] *= 0.05
            new_k[FRESH] += same
            new_q[:2, FRESH] += same
        weights[at + "q_proj.weight"] = torch.cat([q, new_q]).view(-1, size)
        weights[at + "k_proj.weight"] = torch.cat([k, new_k[None]]).view(-1, size)
        weights[at + "v_proj.weight"] = torch.cat([v, torch.randn(1, NEW, size) * v.square().mean().sqrt()]).view(-1, size)
        weights[at + "o_proj.weight"] = o.view(size, -1)
        for name in ("q_norm.weight", "k_norm.weight"):
            gain = torch.full((NEW,), GAIN)
            gain[KEPT] = weights[at + name] * (OLD / NEW) ** 0.25  # the mean square is over more dimensions now
            weights[at + name] = gain
    save_file({k: v.bfloat16().contiguous() for k, v in weights.items()}, out / "model.safetensors", metadata={"format": "pt"})
    config.update(head_dim=NEW, num_attention_heads=GROUPS * HEADS, num_key_value_heads=GROUPS, rope_theta=THETA,
                  rope_parameters={"rope_type": "default", "rope_theta": THETA})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    main()
