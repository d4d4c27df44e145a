"""Write training-goldens.json: PyTorch + PEFT gradients and a loss curve for the tiny models of families.json.

    python test/goldens/make_training_goldens.py      (torch 2.13, transformers 5.18, peft 0.21; only to make goldens)

Every family carries LoRA factors of rank RANK on all seven projections (of layers with experts: on those of attention), drawn from the hash, and three sequences with a common prefix.
"F32", "BF16": d sum(weight_t * logprob_t) / d factor, in order layer, module, A then B, flattened; float32 for F32, the upper halves
(bfloat16) for BF16, base64. For BF16 weights and factors are rounded to bfloat16, and so is what enters every projection and what
attention reads: the function that is served, in float32 arithmetic and differentiated as if nothing was rounded. (The same without that
rounding is another function: its gradients differ by 1 to 4 % on these models, those of PyTorch's own bfloat16 by 3 to 8 %: --errors.)
"logprobs": those of the targets, F32. "losses": the mean of -logprob before each of ten AdamW steps on the same three sequences, F32.
"""
import argparse
import base64
import functools
import importlib
import json
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import transformers_weight_conversion as weight_conversion

from hash_weights import hash_tokens, hash_uniform, round_bfloat16
from make_family_goldens import build

HERE = Path(__file__).parent
RANK, ALPHA, PREFIX, ENDINGS = 2, 3.0, 37, [20, 33, 9]
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAMW = {"learningRate": 0.02, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weightDecay": 0.1, "maxGradNorm": 0.5}


def with_factors(model, family: str, rounded: bool):
    """The model under PEFT with hashed factors, and these in order: layer, module, A then B."""
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, bias="none", target_modules=MODULES)
    # Of "gate_proj" and its like PEFT would make factors of the experts, where a model has any.
    weight_conversion._convert_peft_config_moe = lambda *_: None
    model = get_peft_model(model, config).eval()
    named = dict(model.named_parameters())
    factors = []
    for layer in range(model.config.num_hidden_layers):
        for module in MODULES:
            room = "self_attn" if module in MODULES[:4] else "mlp"
            for half, gain in (("A", 1.0), ("B", 0.3)):
                parameter = named.get(f"base_model.model.model.layers.{layer}.{room}.{module}.lora_{half}.default.weight")
                if parameter is None:  # the layer's feed-forward is a mixture of experts
                    continue
                amplitude = gain * float(np.sqrt(3.0 / parameter.shape[1]))
                values = hash_uniform(f"{family}/lora/{layer}/{module}/{half}", parameter.numel(), 0.0, amplitude)
                values = round_bfloat16(values) if rounded else values
                parameter.data.copy_(torch.from_numpy(values).reshape(parameter.shape))
                factors.append(parameter)
    return model, factors


def sequences(family: str, vocab: int):
    """Whole sequences, and per sequence the weights of the log-probabilities of its ending's tokens after the first."""
    prefix = hash_tokens(f"{family}/train/prefix", PREFIX, vocab)
    for index, count in enumerate(ENDINGS):
        ending = hash_tokens(f"{family}/train/ending {index}", count, vocab)
        weights = hash_uniform(f"{family}/train/weights {index}", count - 1, 0.0, 1.0)
        yield prefix + ending, torch.from_numpy(weights)


def logprobs_of(model, tokens: list[int], count: int) -> torch.Tensor:
    """Of the last `count` tokens."""
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    rows = torch.log_softmax(logits[-count - 1:-1], -1)
    return rows.gather(1, torch.tensor(tokens[-count:])[:, None])[:, 0]


class Round(torch.autograd.Function):
    """To bfloat16 and back; the gradient passes."""

    @staticmethod
    def forward(_, values):
        return values.bfloat16().float()

    @staticmethod
    def backward(_, gradient):
        return gradient


KEY_TILE = 64


def served_attention(code):
    """Attention in tiles of keys with weights rounded to bfloat16 before they meet the values, their sum unrounded."""

    def attend(module, query, key, value, attention_mask, scaling, **_):
        groups = module.num_key_value_groups
        scores = query @ code.repeat_kv(key, groups).transpose(2, 3) * scaling + attention_mask[..., : key.shape[2]]
        values = code.repeat_kv(value, groups)
        top, total, out = torch.full_like(scores[..., :1], -1e30), 0.0, 0.0
        for first in range(0, scores.shape[-1], KEY_TILE):
            tile = scores[..., first:first + KEY_TILE]
            best = torch.maximum(top, tile.detach().amax(-1, keepdim=True))
            keep, weights = torch.exp(top - best), torch.exp(tile - best)
            total = total * keep + weights.sum(-1, keepdim=True)
            out = out * keep + Round.apply(weights) @ values[:, :, first:first + KEY_TILE]
            top = best
        return (out / total).transpose(1, 2).contiguous(), None

    return attend


def served_experts(experts, hidden, chosen, weights):
    """A mixture of experts whose inputs and activations are rounded to bfloat16."""
    out, hidden = torch.zeros_like(hidden), Round.apply(hidden)
    for index in range(experts.num_experts):
        rows, places = torch.where(chosen == index)
        gate, up = torch.nn.functional.linear(hidden[rows], experts.gate_up_proj[index]).chunk(2, dim=-1)
        active = Round.apply(torch.nn.functional.silu(gate) * up)
        out = out.index_add(0, rows, torch.nn.functional.linear(active, experts.down_proj[index]) * weights[rows, places, None])
    return out


def round_as_served(model, family: dict):
    """Rounds what the engine rounds in bfloat16: inputs of the base projections and the head, queries, keys, values and their weights."""
    for name, module in model.named_modules():
        if name.endswith(("_proj", "lm_head")):
            module.register_forward_pre_hook(lambda _, args: (Round.apply(args[0]), *args[1:]))
        if name.endswith("mlp.gate"):
            module.register_forward_pre_hook(lambda _, args: (Round.apply(args[0]),))
        if name.endswith("mlp.experts"):
            module.forward = functools.partial(served_experts, module)
        if name.endswith("v_proj"):
            module.register_forward_hook(lambda _, __, out: Round.apply(out))
    kind = family["config"]["model_type"]
    code = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    rotate, attend = code.apply_rotary_pos_emb, code.eager_attention_forward
    code.apply_rotary_pos_emb = lambda *args, **options: tuple(Round.apply(x) for x in rotate(*args, **options))
    code.eager_attention_forward = served_attention(code)

    def undo():
        code.apply_rotary_pos_emb, code.eager_attention_forward = rotate, attend

    return undo


def gradients(family: dict, plan: dict, rounded: bool, arithmetic: str = "served"):
    model, _ = build(family, plan, rounded)
    model, factors = with_factors(model, family["name"], rounded)
    undo = round_as_served(model, family) if rounded and arithmetic == "served" else lambda: None
    logprobs = []
    for tokens, weights in sequences(family["name"], family["config"]["vocab_size"]):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arithmetic == "autocast"):
            found = logprobs_of(model, tokens, len(weights)).float()
        (found * weights).sum().backward()
        logprobs += found.tolist()
    undo()
    return [f.grad.numpy().reshape(-1) for f in factors], logprobs


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def report(family: dict, plan: dict) -> None:
    exact, _ = gradients(family, plan, True, "exact")
    for arithmetic in ("served", "autocast"):
        errors = [relative(a, b) for a, b in zip(gradients(family, plan, True, arithmetic)[0], exact)]
        print(f"{family['name']:14s} {arithmetic:9s} against exact: median {np.median(errors):.4f}, worst {max(errors):.4f}")


def losses(family: dict, plan: dict) -> list[float]:
    model, _ = build(family, plan, False)
    model, factors = with_factors(model, family["name"], False)
    optimizer = torch.optim.AdamW(factors, lr=ADAMW["learningRate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"],
                                  weight_decay=ADAMW["weightDecay"])
    rows = list(sequences(family["name"], family["config"]["vocab_size"]))
    count, curve = sum(len(w) for _, w in rows), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = sum(-logprobs_of(model, tokens, len(weights)).sum() for tokens, weights in rows) / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(factors, ADAMW["maxGradNorm"])
        optimizer.step()
        curve.append(round(loss.item(), 6))
    return curve


def base64_of(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "training-goldens.json")
    parser.add_argument("--errors", action="store_true", help="also print how far bfloat16 arithmetic is from exact arithmetic")
    args = parser.parse_args()
    torch.set_num_threads(1)
    plan = json.loads((HERE / "families.json").read_text())
    goldens = {}
    for family in plan["families"]:
        if args.errors:
            report(family, plan)
        exact, logprobs = gradients(family, plan, False)
        rounded, _ = gradients(family, plan, True)
        exact, rounded = np.concatenate(exact), np.concatenate(rounded)
        goldens[family["name"]] = {
            "F32": base64_of(exact.astype("<f4")),
            "BF16": base64_of((round_bfloat16(rounded).view(np.uint32) >> 16).astype("<u2")),
            "logprobs": [round(x, 5) for x in logprobs],
            "losses": losses(family, plan),
        }
        print(family["name"], exact.size, goldens[family["name"]]["losses"])
    head = {"rank": RANK, "alpha": ALPHA, "prefix": PREFIX, "endings": ENDINGS, "adamw": ADAMW}
    lines = ",\n".join(f'  "{name}": {json.dumps(entry, separators=(",", ":"))}' for name, entry in goldens.items())
    args.out.write_text(f'{{\n"plan": {json.dumps(head)},\n"families": {{\n{lines}\n}}\n}}\n')
    print(args.out, args.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
