"""Write adapter-goldens.json: PEFT's logits for adapters of the tiny models of families.json.

    python test/goldens/make_adapter_goldens.py       (torch 2.13, transformers 5.18, peft 0.21; only to make goldens)

As make_family_goldens.py: hashed base weights and hashed factors, as they are ("F32") and rounded to bfloat16 ("BF16"), one float32
pass. Kept are the logits, adapter_config.json as PEFT saves it, and the names and shapes of the tensors that it saves.
"""
import base64
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open

from hash_weights import hash_tokens, hash_uniform, round_bfloat16
from make_family_goldens import build, logits_of

HERE = Path(__file__).parent
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CASES = [
    {"name": "all", "family": "qwen3", "lora": {"r": 8, "lora_alpha": 16, "target_modules": ALL}},
    {"name": "rslora", "family": "llama-bias", "lora": {"r": 5, "lora_alpha": 10, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "down_proj"]}},
    {"name": "patterns", "family": "mistral", "lora": {"r": 4, "lora_alpha": 4, "target_modules": ["o_proj", "up_proj"],
                                                       "rank_pattern": {"layers.1.mlp.up_proj": 16, "o_proj": 3},
                                                       "alpha_pattern": {"layers.0.self_attn.o_proj": 9}}},
]


def factor(case: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A with standard deviation 1/sqrt(in), B with 0.25."""
    deviation = 1 / np.sqrt(shape[1]) if ".lora_A." in name else 0.25
    return hash_uniform(f"adapter {case}/{name}", int(np.prod(shape)), 0.0, float(deviation * np.sqrt(3))).reshape(shape)


def golden(case: dict, plan: dict, rounded: bool) -> tuple[dict, dict, str]:
    family = next(f for f in plan["families"] if f["name"] == case["family"])
    base, _ = build(family, plan, rounded)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **case["lora"])).eval()
    for name, parameter in model.named_parameters():
        if ".lora_" not in name:
            continue
        values = factor(case["name"], name.replace(".default", ""), tuple(parameter.shape))
        parameter.data.copy_(torch.from_numpy(round_bfloat16(values) if rounded else values))
    with tempfile.TemporaryDirectory() as folder:
        model.peft_config["default"].base_model_name_or_path = f"example/{case['family']}"
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        with safe_open(str(Path(folder) / "adapter_model.safetensors"), "pt") as file:
            tensors = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    config["target_modules"] = sorted(config["target_modules"])
    tokens = hash_tokens(f"{case['family']}/tokens", plan["length"], family["config"]["vocab_size"])
    logits = logits_of(model, tokens, plan["positions"][-4:])
    return config, tensors, base64.b64encode(logits.astype("<f4").tobytes()).decode()


def main() -> None:
    torch.set_num_threads(1)
    plan = json.loads((HERE / "families.json").read_text())
    lines = []
    for case in CASES:
        config, tensors, f32 = golden(case, plan, False)
        _, _, bf16 = golden(case, plan, True)
        entry = {"family": case["family"], "positions": plan["positions"][-4:], "config": config, "tensors": tensors, "F32": f32, "BF16": bf16}
        body = ",\n".join(f'  "{key}": {json.dumps(value, separators=(",", ":"))}' for key, value in entry.items())
        lines.append(f'"{case["name"]}": {{\n{body}\n}}')
    out = HERE / "adapter-goldens.json"
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(out, out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
