"""PyTorch and transformers on the GPU, on the cases of gpu_bench and gpu_engine, and the ratio of ours to theirs where ours are given.

Usage: python3 gpu_peers.py OUT.json [--shapes 0.6b 8b] [--device cuda] [--quick] [--beside RESULTS.json ...]
A case that the installed versions cannot run is reported with the reason; the others go on.
"""
import argparse
import json
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F

HEADS, KV_HEADS, DIM = 32, 8, 128
TARGETS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]


class Cases:
    def __init__(self, device: str, quick: bool):
        self.device, self.quick = device, quick
        self.results = []

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call, rounds: int = 7) -> float:
        """The median of `rounds`, each long enough to be timed."""
        for _ in range(2):
            call()
        self.synchronize()
        begin = time.perf_counter()
        call()
        self.synchronize()
        calls = 1 if self.quick else max(1, min(1000, int(0.05 / max(1e-6, time.perf_counter() - begin))))
        times = []
        for _ in range(1 if self.quick else rounds):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            self.synchronize()
            times.append((time.perf_counter() - begin) / calls)
        return statistics.median(times)

    def case(self, name: str, unit: str, measure) -> None:
        try:
            value = measure()
        except Exception as error:  # an API of another version, or no memory left
            print(f"{name}: not measured: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return
        self.results.append({"name": name, "median": value, "unit": unit})

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)


def kernels(cases: Cases) -> None:
    def product(m: int, n: int, k: int) -> float:
        x, w = cases.noise(m, k), cases.noise(n, k)
        seconds = cases.seconds(lambda: F.linear(x, w))
        return n * k * 2 / seconds / 1e9 if m <= 64 else 2e-12 * m * n * k / seconds

    scale = 64 if cases.quick else 1
    for m in (1, 8, 32, 512, 2048, 8192):
        for n, k in ((6144, 4096), (24576, 4096), (4096, 12288)) + (((151936, 1024),) if m <= 32 else ()):
            unit = "GB/s" if m <= 64 else "TFLOP/s"
            cases.case(f"product m={m} n={n} k={k}", unit, lambda: product(max(1, m // scale), n // scale, k // scale))

    def attention(sequences: int, tokens: int, length: int) -> float:
        q = cases.noise(sequences, HEADS, tokens, DIM)
        k, v = cases.noise(sequences, KV_HEADS, length, DIM), cases.noise(sequences, KV_HEADS, length, DIM)
        causal = tokens > 1
        return cases.seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True))

    for sequences, length in ((32, 2048), (1, 8192)):
        moved = sequences * length * KV_HEADS * DIM * 4 / 1e9
        cases.case(
            f"decode attention {sequences} x {length}", "GB/s", lambda: moved / attention(sequences, 1, length // scale)
        )
    work = 2e-12 * 2048 * 2048 * HEADS * DIM
    cases.case("prefill attention 2048", "TFLOP/s", lambda: work / attention(1, 2048 // scale, 2048 // scale))


def random_model(shape: str, device: str):
    """Qwen3 of that shape with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    large = shape == "8b"
    sizes = {
        "0.6b": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
        "8b": dict(hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32),
        "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=8),
    }[shape]
    config = transformers.Qwen3Config(
        **sizes,
        vocab_size=1000 if shape == "tiny" else 151936,
        num_key_value_heads=8,
        head_dim=16 if shape == "tiny" else DIM,
        max_position_embeddings=40960,
        rope_theta=1e6,
        tie_word_embeddings=not large,
    )
    torch.manual_seed(1)
    with torch.device(device):
        model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    # Random weights may sample an end; lengths must not depend on that.
    model.generation_config.eos_token_id = None
    return model.eval()


def prompts(count: int, vocab: int) -> list[list[int]]:
    draw = random.Random(7)
    return [[draw.randrange(vocab) for _ in range(draw.randint(100, 1024))] for _ in range(count)]


def engine(cases: Cases, shape: str) -> None:
    model = random_model(shape, cases.device)
    vocab, quick = model.config.vocab_size, cases.quick
    steps = 4 if quick else 280

    def decode() -> float:
        ids = torch.randint(vocab, (1, 128), device=cases.device)
        ask = dict(attention_mask=torch.ones_like(ids), do_sample=False, cache_implementation="static")

        def generate(tokens: int) -> float:
            begin = time.perf_counter()
            model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **ask)
            cases.synchronize()
            return time.perf_counter() - begin

        generate(steps + 20)
        return steps / (generate(steps + 20) - generate(20))

    def prefill(tokens: int) -> float:
        ids = torch.randint(vocab, (1, tokens), device=cases.device)
        return tokens / cases.seconds(lambda: model(ids, logits_to_keep=1, use_cache=True))

    def throughput() -> float:
        asked = prompts(2 if quick else 256, vocab)
        outputs = 4 if quick else 562  # the mean of 100..1024: one length for all is what it takes
        settings = model.generation_config
        settings.max_new_tokens, settings.do_sample, settings.temperature = outputs, True, 0.6
        begin = time.perf_counter()
        replies = model.generate_batch(inputs=asked, generation_config=settings)
        cases.synchronize()
        return sum(len(reply.generated_tokens) for reply in replies.values()) / (time.perf_counter() - begin)

    with torch.inference_mode():
        cases.case(f"{shape}: decode, one stream", "tokens/s", decode)
        for tokens in (2048, 8192):
            cases.case(f"{shape}: prefill of {tokens}", "tokens/s", lambda: prefill(tokens // (64 if quick else 1)))
        cases.case(f"{shape}: offline throughput, 256 requests", "tokens/s", throughput)
    cases.case(f"{shape}: LoRA step, 8192 tokens, rank 16", "tokens/s", lambda: train(cases, model))


def train(cases: Cases, model) -> float:
    import peft

    tokens = 64 if cases.quick else 8192
    model.config.use_cache = False
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS)).train()
    optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=1e-5)
    ids = torch.randint(model.config.vocab_size, (1, tokens), device=cases.device)

    def step() -> None:
        adapted(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return tokens / cases.seconds(step, rounds=3)


def beside(theirs: list[dict], files: list[str]) -> None:
    """Ours over theirs, for cases of one name; those of an engine (in BF16) are named after its shape."""
    ours = {}
    for file in files:
        with open(file) as text:
            found = json.load(text)
        prefix = f"{found['shape'].split()[0]}: " if "shape" in found else ""
        ours.update({prefix + case["name"]: case.get("median", case.get("value")) for case in found["cases"]})
    print(f"{'case':48} {'ours':>12} {'peer':>12} {'ratio':>7}")
    for case in theirs:
        mine = ours.get(case["name"])
        ratio = f"{mine / case['median']:7.2f}" if mine else f"{'-':>7}"
        print(f"{case['name']:48} {mine or 0:12.4g} {case['median']:12.4g} {ratio}  {case['unit']}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--shapes", nargs="*", default=["0.6b", "8b"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--beside", nargs="*", default=[])
    options = parser.parse_args()
    cases = Cases(options.device, options.quick)
    kernels(cases)
    for shape in options.shapes:
        engine(cases, shape)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    with open(options.out, "w") as file:
        json.dump({"device": device, "torch": torch.__version__, "cases": cases.results}, file, indent=2)
    beside(cases.results, options.beside)


main()
