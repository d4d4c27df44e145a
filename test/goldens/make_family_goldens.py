"""Write family-goldens.json: transformers' logits for the tiny models of families.json.

    python test/goldens/make_family_goldens.py        (torch 2.13, transformers 5.18; only to make goldens)

Every model runs in float32 with eager attention, one pass over the whole sequence. The weights are those of
hash_weights.py as they are ("F32") and rounded to bfloat16 ("BF16": the reference for an engine that computes in
bfloat16 is the exact model of the same rounded weights, so the tolerance covers the engine's rounding alone).
Logits are kept at the positions of families.json over the whole vocabulary, as little-endian float32 in base64.
--ablate also prints how far the logits move when one feature is taken away, and an estimate of the error of
bfloat16 arithmetic: both bound the tolerances of the tests.
"""
import argparse
import base64
import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hash_weights import checksum, hash_tokens, round_bfloat16, tensor_values

HERE = Path(__file__).parent


def stored_parts(model_type: str, name: str, parameter) -> list[tuple[str, torch.Tensor]]:
    """What checkpoints call a parameter, and its part: transformers holds all experts of a layer as one tensor."""
    if ".experts." not in name:
        moe = model_type == "mixtral" and name.endswith(".mlp.gate.weight")
        return [(name.replace(".mlp.", ".block_sparse_moe.") if moe else name, parameter.data)]
    prefix, kind = name.rsplit(".", 1)
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    if model_type == "mixtral":
        prefix, names = prefix.replace(".mlp.", ".block_sparse_moe."), {"gate": "w1", "up": "w3", "down": "w2"}
    parts = []
    for expert, matrix in enumerate(parameter.data):
        kinds = {"gate": matrix.chunk(2)[0], "up": matrix.chunk(2)[1]} if kind == "gate_up_proj" else {"down": matrix}
        parts += [(f"{prefix}.{expert}.{names[part]}.weight", values) for part, values in kinds.items()]
    return parts


def build(family: dict, plan: dict, rounded: bool, config_changes: dict | None = None):
    """A transformers model with hashed weights; returns it with its tensors as {name: float32 array}."""
    raw = {**family["config"], **(config_changes or {})}
    config = AutoConfig.for_model(**raw)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = {}
    for whole, parameter in model.named_parameters():
        for name, part in stored_parts(family["config"]["model_type"], whole, parameter):
            values = tensor_values(family["name"], name, tuple(part.shape), plan)
            tensors[name] = round_bfloat16(values) if rounded else values
            part.copy_(torch.from_numpy(tensors[name]))
    return model, tensors


@torch.no_grad()
def logits_of(model, tokens: list[int], positions: list[int]) -> np.ndarray:
    return model(torch.tensor([tokens]), use_cache=False).logits[0, positions].float().numpy()


def golden(family: dict, plan: dict, rounded: bool) -> dict:
    model, tensors = build(family, plan, rounded)
    tokens = hash_tokens(f"{family['name']}/tokens", plan["length"], family["config"]["vocab_size"])
    logits = logits_of(model, tokens, plan["positions"])
    assert logits.std() >= 2, (family["name"], logits.std())
    return {
        "std": round(float(logits.std()), 4),
        "tensors": {name: {"shape": list(values.shape), "checksum": checksum(values)} for name, values in tensors.items()},
        "logits": base64.b64encode(logits.astype("<f4").tobytes()).decode(),
    }


def compact(goldens: dict) -> str:
    lines = []
    for name, entry in goldens.items():
        head = json.dumps(entry["tokens"], separators=(",", ":"))
        bodies = ",\n".join(f'  "{d}": {json.dumps(entry[d], separators=(",", ":"))}' for d in ("F32", "BF16"))
        lines.append(f'"{name}": {{\n  "tokens": {head},\n{bodies}\n}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


ABLATIONS = {
    "rope scaling": (lambda c: c.get("rope_scaling"), {"rope_scaling": None}),
    "window": (lambda c: c.get("use_sliding_window", True) and c.get("sliding_window"),
               {"sliding_window": None, "use_sliding_window": False}),
    "rope": (lambda c: True, {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 1e9}, "rope_scaling": None}),
}


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """RMS of the difference over the standard deviation of b, both without the mean of their rows."""
    a = a.astype(np.float64) - a.mean(-1, keepdims=True, dtype=np.float64)
    b = b.astype(np.float64) - b.mean(-1, keepdims=True, dtype=np.float64)
    return float(np.sqrt(((a - b) ** 2).mean()) / b.std())


def bf16_inputs(model) -> None:
    """Round what enters every projection to bfloat16, as an engine with bfloat16 products does."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) or type(module).__name__.endswith(("TopKRouter", "Experts")):
            module.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(), *args[1:]))
    for name, module in model.named_modules():
        if name.endswith(("k_proj", "v_proj")):
            module.register_forward_hook(lambda _, __, out: out.bfloat16().float())


def report(family: dict, plan: dict) -> None:
    tokens = hash_tokens(f"{family['name']}/tokens", plan["length"], family["config"]["vocab_size"])
    model, _ = build(family, plan, True)
    reference = logits_of(model, tokens, plan["positions"])
    bf16_inputs(model)
    print(f"{family['name']:14s} std {reference.std():.2f}  bf16 error {relative(logits_of(model, tokens, plan['positions']), reference):.4f}",
          end="")
    for label, (applies, changes) in ABLATIONS.items():
        if applies(family["config"]):
            other, _ = build(family, plan, True, changes)
            print(f"  -{label} {relative(logits_of(other, tokens, plan['positions']), reference):.3f}", end="")
    for label, suffix in {"biases": ".bias", "q/k norm": ("q_norm.weight", "k_norm.weight")}.items():
        other, _ = build(family, plan, True)
        found = [p for n, p in other.named_parameters() if n.endswith(suffix)]
        for parameter in found:
            parameter.data.fill_(1.0 if label == "q/k norm" else 0.0)
        if found:
            print(f"  -{label} {relative(logits_of(other, tokens, plan['positions']), reference):.3f}", end="")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "family-goldens.json")
    parser.add_argument("--ablate", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = json.loads((HERE / "families.json").read_text())
    goldens = {}
    for family in plan["families"]:
        if args.ablate:
            report(family, plan)
        vocab = family["config"]["vocab_size"]
        goldens[family["name"]] = {
            "tokens": hash_tokens(f"{family['name']}/tokens", plan["length"], vocab),
            "F32": golden(family, plan, False),
            "BF16": golden(family, plan, True),
        }
    args.out.write_text(compact(goldens))
    print(args.out, args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
