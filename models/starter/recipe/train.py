"""Train the starter model: a small Qwen3 on an endless stream of generated conversations.

    python train.py --model ../model --run ../run --minutes 28

The learning rate is constant, then falls in a straight line to zero over the last --decay of
--minutes of training time, or of --steps if given.
Each of --processes trains on its own share of a batch, and the gradients are averaged; on a few
CPU cores that is faster than threads, which wait for each other in every small operation. The
stream is made while training, by one more process each, and never repeats: share r of batch k is
drawn from seed (--seed, k, r). Stop at any time and run the same command again to resume. Every --save-seconds
the run folder gets a checkpoint and the model folder gets fresh weights in the Hugging Face layout.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from generate import Source, conversation, for_training, tool_drill
from hints import hints_of

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "dtype": "bfloat16", "torch_dtype": "bfloat16",
    "vocab_size": 4096, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "hidden_act": "silu",
    "max_position_embeddings": 1024, "rope_theta": 1e8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e8},
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False, "attention_dropout": 0.0,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 6,
    "initializer_range": 0.02, "use_cache": True,
}
END_OF_TEXT, IM_END = 4087, 4089  # the ids of <|endoftext|> and <|im_end|>
CALL, REFUSE = 4092, 40  # <tool_call>, and the "I" of "I do not have a tool for that."
HINTED = {"copy": [(4, 7), (5, 6)], "which": [(4, 6)], "name": [(1, 3)], "same": [(2, 6)]}  # (layer, head) of each kind
MOST = {"copy": 128, "which": 80, "name": 16, "same": 32}  # hints per row; more are dropped
FLAGGED = 4  # before this layer the object of a request should show whether a tool fits


# ---------------------------------------------------------------- model (parameter names as in Hugging Face)

class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        x32 = x.float()
        return self.weight * (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + 1e-6)).type_as(x)


def attend(q, k, v, mask, block=128):
    """Attention in blocks of queries, each with the keys up to its end.

    Written out so that the compiler can fuse it: for rows this short on a CPU that is three times
    as fast as the library's flash attention. `mask` is added to the scores; it must be causal.
    """
    out = []
    for start in range(0, q.shape[2], block):
        rows, seen = slice(start, start + block), slice(start + block)
        scores = q[:, :, rows] @ k[:, :, seen].transpose(-1, -2) * q.shape[-1] ** -0.5 + mask[..., rows, seen]
        out.append(scores.float().softmax(-1).type_as(v) @ v[:, :, seen])
    return torch.cat(out, 2)


def missing(q, k, mask, at, wanted):
    """Mean of -log(share of the attention on what is wanted), over the positions that want something."""
    q = q.gather(1, at[..., None].expand(-1, -1, q.shape[-1]))
    mask = mask.gather(1, at[..., None].expand(-1, -1, mask.shape[-1]))
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + mask).float()
    share = scores.masked_fill(~wanted, -1e4).logsumexp(-1) - scores.logsumexp(-1)
    real = wanted.any(-1)
    return -(share.clamp(min=-20) * real).sum() / real.sum().clamp(min=1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.dim = c["hidden_size"], c["head_dim"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.q_proj = nn.Linear(d, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(d, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(d, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, d, bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.dim), RMSNorm(self.dim)

    def forward(self, x, cos, sin, mask, hints=()):
        """Also returns the loss of the hints: [(head, positions, where to attend to)]."""
        b, t, _ = x.shape

        def rotate(u):
            u1, u2 = u.chunk(2, -1)
            return u * cos + torch.cat((-u2, u1), -1) * sin

        q = rotate(self.q_norm(self.q_proj(x).view(b, t, self.heads, self.dim)).transpose(1, 2))
        k = rotate(self.k_norm(self.k_proj(x).view(b, t, self.kv_heads, self.dim)).transpose(1, 2))
        v = self.v_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        missed = sum((missing(q[:, head], k[:, head // (self.heads // self.kv_heads)], mask[:, 0], at, wanted)
                      for head, at, wanted in hints), start=torch.zeros(()))
        k, v = (u.repeat_interleave(self.heads // self.kv_heads, 1) for u in (k, v))
        y = attend(q.type_as(v), k.type_as(v), v, mask)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1)), missed


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, h, bias=False)
        self.up_proj = nn.Linear(d, h, bias=False)
        self.down_proj = nn.Linear(h, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(c["hidden_size"]), Attention(c)
        self.post_attention_layernorm, self.mlp = RMSNorm(c["hidden_size"]), MLP(c)

    def forward(self, x, cos, sin, mask, hints=()):
        y, missed = self.self_attn(self.input_layernorm(x), cos, sin, mask, hints)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), missed


class Qwen3(nn.Module):
    """The body of the network; the head is the (tied) embedding, applied by `loss_of`."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"])
        frequency = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angle = torch.outer(torch.arange(c["max_position_embeddings"]).float(), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c["num_hidden_layers"]) if last else 0.02)

    def forward(self, ids, mask, hints):
        """The last states, those before layer FLAGGED, and the loss of the hints."""
        t = ids.shape[1]
        x, missed = self.embed_tokens(ids), torch.zeros(())
        for i, layer in enumerate(self.layers):
            if i == FLAGGED:
                early = self.norm(x)
            x, more = layer(x, self.cos[:t], self.sin[:t], mask,
                            [(head, *hints[kind]) for kind in HINTED for l, head in HINTED[kind] if l == i])
            missed = missed + more
        return self.norm(x), early, missed


def loss_of(body, embedding, ids, targets, weights, mask, hints, flags):
    """Cross entropy at the positions that have a target; the others never reach the head.

    Their number is padded to a fixed one, since kernels are cached per shape. Also returns the loss of the hints,
    and that of the flags: whether early states at the object of a request tell a call from a refusal.
    """
    hidden, early, missed = body(ids, mask, hints)
    at, label = flags
    told = early.gather(1, at[..., None].expand(-1, -1, early.shape[-1])).float() @ (embedding[CALL] - embedding[REFUSE])
    flagged = F.binary_cross_entropy_with_logits(told, label.clamp(min=0), reduction="none") * (label >= 0)
    flagged = flagged.sum() / (label >= 0).sum().clamp(min=1)
    hidden, targets, weights = hidden.flatten(0, 1), targets.flatten(), weights.flatten()
    chosen = (targets >= 0).nonzero().squeeze(1)[:len(targets) // 2]
    chosen = F.pad(chosen, (0, len(targets) // 2 - len(chosen)), value=len(targets) - 1)  # the last has no target
    logits, weights = F.linear(hidden[chosen], embedding).float(), weights[chosen]
    loss = (F.cross_entropy(logits, targets[chosen], ignore_index=-1, reduction="none") * weights).sum() / weights.sum()
    return loss, missed, flagged


class Muon:
    """Momentum whose every update is made orthogonal, for the matrices inside the layers.

    Each process works out its share of the updates. They are scaled to the size of AdamW's, so the
    same learning rate serves both.
    """

    def __init__(self, matrices, momentum=0.95, weight_decay=0.05):
        self.matrices, self.momentum, self.weight_decay = matrices, momentum, weight_decay
        self.buffers = [torch.zeros_like(p) for p in matrices]

    @torch.no_grad()
    def step(self, lr, rank, processes):
        updates = [torch.zeros_like(p) for p in self.matrices]
        for i, (p, m) in enumerate(zip(self.matrices, self.buffers)):
            m.lerp_(p.grad, 1 - self.momentum)
            if i % processes == rank:
                x = p.grad.lerp(m, self.momentum).bfloat16()
                x = x.T if len(x) > len(x.T) else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):  # Newton and Schulz's iteration pulls every singular value towards 1
                    y = x @ x.T
                    x = 3.4445 * x + (-4.775 * y + 2.0315 * y @ y) @ x
                updates[i] += (x.T if x.shape != p.shape else x).float() * 0.2 * max(p.shape) ** 0.5
        flat = torch.cat([u.flatten() for u in updates])
        dist.all_reduce(flat)
        for p, u in zip(self.matrices, flat.split([p.numel() for p in self.matrices])):
            p.mul_(1 - lr * self.weight_decay).sub_(u.view_as(p), alpha=lr)


def export(model, folder):
    """Write the weights (bf16) and the two configuration files that Hugging Face expects."""
    from safetensors.torch import save_file
    tensors = {f"model.{k}": v.detach().to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors.new", metadata={"format": "pt"})
    os.chmod(folder / "model.safetensors.new", 0o644)
    os.replace(folder / "model.safetensors.new", folder / "model.safetensors")
    config = {**CONFIG, "bos_token_id": None, "eos_token_id": IM_END, "pad_token_id": END_OF_TEXT}
    generation = {"do_sample": True, "temperature": 0.7, "top_p": 0.95,
                  "eos_token_id": [IM_END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    for name, value in (("config", config), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n")


# ---------------------------------------------------------------- data

def encode(tokenizer, c, dense=False, hints=False):
    """Token ids of a conversation, and for each whether the model should learn to write it.

    Learned: every assistant turn with its <|im_end|>, but neither the empty thought that the prompt
    already holds nor the first token of an earlier turn (shown there without its thought). Where
    there are tools but no thoughts, every turn gets the empty thought, so that its first token,
    which says whether a tool is called, is learned as well.
    """
    text = tokenizer.apply_chat_template(c["messages"], tools=c["tools"], tokenize=False)
    if dense and c["tools"] and not c["thinking"]:
        text = re.sub("(<\\|im_start\\|>assistant\n)(?!<think>)", "\\1<think>\n\n</think>\n\n", text)
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    ids = encoding.ids
    start, end, think, unthink = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    header = tokenizer.encode("assistant\n", add_special_tokens=False)
    learn, i = [False] * len(ids), 0
    while i < len(ids):
        if ids[i] == start and ids[i + 1:i + 1 + len(header)] == header:
            i += 1 + len(header)
            if ids[i] != think:
                i += 1
            elif not c["thinking"]:
                i = ids.index(unthink, i) + 2
            while i < len(ids):
                learn[i] = True
                if ids[i] == end:
                    break
                i += 1
        i += 1
    return (ids, learn, *hints_of(text, encoding.offsets, learn, c)) if hints else (ids, learn)


def plain_letters(tokenizer):
    """Ids and texts of the entries that are letters only, perhaps after a space ("\u0120" in the vocabulary)."""
    return {i: t for t, i in tokenizer.get_vocab().items()
            if t.removeprefix("\u0120").isascii() and t.removeprefix("\u0120").isalpha()}


class Splitter:
    """Now and then writes words in smaller tokens than the tokenizer would.

    It teaches which letters a token stands for: "plate" is one token after a space and two after a
    quotation mark. So half of the splits are those of the word without its space, the others any.
    In some of the chosen conversations only the prompt is split, so that the answer is in the usual
    tokens; in others only the answer.
    """

    def __init__(self, tokenizer):
        vocab, self.pairs, self.bare = tokenizer.get_vocab(), {}, {}
        for i, t in plain_letters(tokenizer).items():
            pairs = [(vocab[t[:k]], vocab[t[k:]]) for k in range(1, len(t)) if t[:k] in vocab and t[k:] in vocab]
            if pairs and t not in ("system", "user", "assistant"):
                self.pairs[i] = pairs
            if t[0] == "\u0120":
                first, *rest = tokenizer.encode(t[1:], add_special_tokens=False)
                spaced = vocab.get("\u0120" + tokenizer.convert_ids_to_tokens(first))
                self.bare[i] = [spaced, *rest] if spaced is not None and rest else [vocab["\u0120"], first, *rest]

    def split(self, token, share, g):
        if token not in self.pairs or g.random() >= share:
            return [token]
        if token in self.bare and g.random() < 0.5:
            return self.bare[token]
        left, right = g.choice(self.pairs[token])
        return self.split(left, share, g) + self.split(right, share, g)

    def __call__(self, ids, learn, task, g):
        if g.random() >= (0.8 if task == "story" else 0.12):
            return ids, learn
        share = g.choice((0.3, 0.6, 0.9) if task == "story" else (0.1, 0.3, 0.6))
        parts = g.choice(((True,), (True,), (False,), (True, False)))  # the answer, the prompt
        split = [self.split(t, share, g) if x in parts else [t] for t, x in zip(ids, learn)]
        return [t for part in split for t in part], [x for part, x in zip(split, learn) for _ in part]


def choosing(pieces, tokens, j):
    """Whether token j of a call chooses what comes next: begins a name or a key, or ends a value."""
    before, last, this = (pieces[t] for t in tokens[j - 2:j + 1])
    return last in ('{"', '\u0120{"') or (last == '\u0120"' and before[-1] in ",:") or this[0] in "},\"" and this[-1] in "},"


def batches(model_folder, seed, first, rank, queue, rows, length, prompt_share, drills):
    """Fill `queue` with packed batches: ids, targets (-1: no loss), their weights, and the document of each token.

    Where there are tools, the first token of the answer and those that choose the tool and its arguments
    count four times.
    """
    from transformers import AutoTokenizer
    os.nice(5)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    splitter, pieces = Splitter(tokenizer), tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    extra = for_training(sorted({t.removeprefix("\u0120") for t in plain_letters(tokenizer).values() if len(t) > 2}))
    k = first
    while True:
        source, noise = Source(f"{seed}/{k}/{rank}", extra=extra), random.Random(f"{k}/{rank}")
        ids = torch.full((rows, length), END_OF_TEXT, dtype=torch.int64)
        targets = torch.full((rows, length), -1, dtype=torch.int64)
        weights = torch.zeros((rows, length))
        documents = torch.zeros((rows, length), dtype=torch.int32)
        hints = {kind: (torch.zeros((rows, n), dtype=torch.int64), torch.zeros((rows, n, length), dtype=torch.bool))
                 for kind, n in MOST.items()}
        flags, used = (torch.zeros((rows, MOST["same"]), dtype=torch.int64), torch.full((rows, MOST["same"]), -1.0)), Counter()
        for row in range(rows):
            at = document = 0
            while at < length - 24:
                c = tool_drill(source) if noise.random() < drills else conversation(source)
                whole, learn, told, fits = encode(tokenizer, c, dense=True, hints=True)
                tokens, learn = splitter(whole, learn, c["task"], noise)
                if tokens != whole:
                    told, fits = [], []
                if at + len(tokens) > length and at > 0 and len(tokens) <= length and noise.random() < 0.8:
                    continue  # prefer a conversation that still fits
                noise.shuffle(told)
                for kind, j, sources in told:
                    if at + j < length and used[kind, row] < MOST[kind]:
                        where, wanted = hints[kind]
                        where[row, used[kind, row]] = at + j
                        wanted[row, used[kind, row], [at + i for i in sources]] = True
                        used[kind, row] += 1
                for j, fit in fits:
                    if at + j < length and used["flag", row] < MOST["same"]:
                        flags[0][row, used["flag", row]], flags[1][row, used["flag", row]] = at + j, fit
                        used["flag", row] += 1
                starts = {j for j in range(1, len(tokens)) if learn[j] and (not learn[j - 1] or choosing(pieces, tokens, j))}
                tokens = tokens[:length - at]
                document += 1
                for j, token in enumerate(tokens):
                    if j and (learn[j] or noise.random() < prompt_share):
                        targets[row, at + j - 1] = token
                        weights[row, at + j - 1] = 4 if c["tools"] and j in starts else 1
                ids[row, at:at + len(tokens)] = torch.tensor(tokens)
                documents[row, at:at + len(tokens)] = document
                at += len(tokens)
        queue.put((k, ids, targets, weights, documents, hints, flags))
        k += 1


# ---------------------------------------------------------------- training

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("../model"), help="holds the tokenizer; gets the weights")
    parser.add_argument("--run", type=Path, default=Path("../run"))
    parser.add_argument("--start", type=Path, help="begin with the weights of this model folder")
    parser.add_argument("--minutes", type=float, default=34)
    parser.add_argument("--steps", type=int, default=0, help="train for so many steps instead")
    parser.add_argument("--rows", type=int, default=8, help="per batch, over all processes")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.75, help="share of the training in which the rate falls")
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--prompt-share", type=float, default=0.0, help="share of prompt tokens that are learned too")
    parser.add_argument("--drills", type=float, default=0.0, help="share of tool drills on top of the mixture's own")
    parser.add_argument("--hints", type=float, default=0.1, help="weight of the hints in the loss")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=29517)
    parser.add_argument("--save-seconds", type=float, default=180)
    parser.add_argument("--stop-after", type=int, default=0, help="stop after this many steps (for timing)")
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    torch.multiprocessing.spawn(train, (args,), nprocs=args.processes)


def train(rank, args):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{args.port}", rank=rank, world_size=args.processes)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(args.run.resolve() / f"compiled-{rank}")
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = Qwen3(CONFIG)
    muon = Muon([p for p in model.layers.parameters() if p.dim() == 2], weight_decay=args.weight_decay)
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": [model.embed_tokens.weight], "weight_decay": args.weight_decay},
                                   {"params": vectors, "weight_decay": 0.0, "times": 3}],
                                  lr=args.lr, betas=(0.9, 0.98), fused=True)
    if args.start:
        from safetensors.torch import load_file
        model.load_state_dict({k.removeprefix("model."): v.float()
                               for k, v in load_file(args.start / "model.safetensors").items()})
    step, tokens, seconds = 0, 0, 0.0  # seconds at work: a pause counts for at most five
    checkpoint = args.run / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        muon.buffers = state["muon"]
        step, tokens, seconds = state["step"], state["tokens"], state["seconds"]
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, starting at step {step}", flush=True)

    queue = multiprocessing.get_context("spawn").Queue(maxsize=8)
    producer = multiprocessing.get_context("spawn").Process(
        target=batches, daemon=True, args=(args.model, args.seed, step, rank, queue,
                                           args.rows // args.processes, args.length, args.prompt_share, args.drills))
    # A spawned trainer is daemonic, and a daemon may not have children unless it says otherwise.
    multiprocessing.current_process()._config["daemon"] = False
    producer.start()

    body = torch.compile(model)
    causal = torch.ones(args.length, args.length, dtype=torch.bool).tril()

    def save():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                 "muon": muon.buffers, "step": step, "tokens": tokens, "seconds": seconds}
        torch.save(state, checkpoint.with_suffix(".new"))
        os.replace(checkpoint.with_suffix(".new"), checkpoint)
        export(model, args.model)

    last = saved = at = time.time()
    first, since, total = step, 0, torch.zeros(3)
    while True:
        seconds, last = seconds + min(5.0, time.time() - last), time.time()
        done = step / args.steps if args.steps else seconds / 60 / args.minutes
        done = torch.tensor(done, dtype=torch.float64)
        dist.broadcast(done, 0)  # the clocks must agree on the learning rate
        done = done.item()
        if done >= 1 or (args.stop_after and step - first >= args.stop_after):
            break
        k, ids, targets, weights, documents, hints, flags = queue.get()
        assert k == step
        scale = min(1.0, (step + 1) / args.warmup, (1 - done) / args.decay)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * scale * group.get("times", 1)
        # A token sees earlier tokens of its own conversation only.
        seen = ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]
        mask = torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, -torch.inf)
        with torch.autocast("cpu", torch.bfloat16):
            loss, missed, flagged = loss_of(body, model.embed_tokens.weight, ids, targets, weights, mask, hints, flags)
        (loss + args.hints * (missed + flagged)).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(gradient)
        gradient *= 1 / args.processes / max(1.0, gradient.norm().item() / args.processes)  # clipped to norm 1
        for p, g in zip(model.parameters(), gradient.split([p.numel() for p in model.parameters()])):
            p.grad = g.view_as(p)
        optimizer.step()
        muon.step(args.lr * scale, rank, args.processes)
        model.zero_grad(set_to_none=True)
        step, since, total = step + 1, since + 1, total + torch.tensor([loss.item(), missed.item(), flagged.item()])
        tokens += ids.numel() * args.processes
        if rank == 0 and (step % 50 == 0 or step == first + 1):
            rate = since * ids.numel() * args.processes / (time.time() - at)
            line = (f"{step}\t{tokens}\t{' '.join(f'{x:.3f}' for x in total / since)}\t{args.lr * scale:.2e}\t{rate:.0f}\t"
                    f"{seconds:.0f}")
            print(line, flush=True)
            with open(args.run / "log.tsv", "a") as log:
                log.write(line + "\n")
            since, at, total = 0, time.time(), torch.zeros(3)
        if rank == 0 and time.time() - saved > args.save_seconds:
            save()
            saved = time.time()
    producer.kill()
    if rank == 0:
        save()
        print(f"step {step}, {tokens:,} tokens, {seconds:.0f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
