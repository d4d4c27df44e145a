"""PyTorch and transformers on the GPU, on the cases of gpu_bench and gpu_engine, and the ratio of ours to theirs where ours are given.

Usage: python3 gpu_peers.py OUT.json [--shapes 0.6b 8b] [--device cuda] [--quick] [--seconds 145] [--beside RESULTS.json ...]
A case that the installed versions cannot run, or not in its time, is reported with the reason; the others go on. Results are written as they
come. Written for PyTorch 2.11 and transformers 5.17.
"""
import argparse
import gc
import json
import random
import signal
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

HEADS, KV_HEADS, DIM = 32, 8, 128
TARGETS = [f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")]


class OutOfTime(BaseException):
    """No Exception: transformers takes those as failures of single requests."""


def out_of_time(*_) -> None:
    raise OutOfTime


class Cases:
    def __init__(self, device: str, quick: bool, seconds: float, out: str):
        self.device, self.quick, self.out = device, quick, out
        self.deadline = time.monotonic() + seconds
        self.results = []
        signal.signal(signal.SIGALRM, out_of_time)

    def write(self) -> None:
        import transformers

        device = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        with open(self.out, "w") as file:
            json.dump({"device": device, **versions, "cases": self.results}, file, indent=2)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call, rounds: int = 5) -> float:
        """The median of `rounds`, each long enough to be timed."""
        for _ in range(2):
            call()
        self.synchronize()
        begin = time.perf_counter()
        call()
        self.synchronize()
        calls = 1 if self.quick else max(1, min(1000, int(0.03 / max(1e-6, time.perf_counter() - begin))))
        times = []
        for _ in range(1 if self.quick else rounds):
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            self.synchronize()
            times.append((time.perf_counter() - begin) / calls)
        return statistics.median(times)

    def case(self, name: str, unit: str, measure, most_seconds: float = 10) -> None:
        """Where a better one of that name is there already, that stays."""
        left = min(most_seconds, self.deadline - time.monotonic())
        try:
            if left <= 0:
                raise OutOfTime
            signal.setitimer(signal.ITIMER_REAL, left)
            value = measure()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except (Exception, OutOfTime) as error:  # an API of another version, no memory left, or too slow
            signal.setitimer(signal.ITIMER_REAL, 0)
            why = f"not done in {max(0, left):.0f} s" if isinstance(error, OutOfTime) else f"{type(error).__name__}: {str(error)[:300]}"
            print(f"{name}: not measured: {why}", file=sys.stderr, flush=True)
            return
        finally:
            self.free()
        self.results = [r for r in self.results if r["name"] != name or r["median"] > value]
        if not any(r["name"] == name for r in self.results):
            self.results.append({"name": name, "median": value, "unit": unit})
        print(f"{name}: {value:.5g} {unit}", flush=True)
        self.write()

    def free(self) -> None:
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

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


def decode_steps(model, length: int):
    """A step of one stream over a static cache, and the token that it reads and writes."""
    import transformers

    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    ids = torch.randint(model.config.vocab_size, (1, 128), device=model.device)
    token = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)

    def step() -> None:
        logits = model(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        token.copy_(logits[:, -1].argmax(-1, keepdim=True))

    return step


def recorded(cases: Cases, step):
    """The same as a CUDA graph, where there is CUDA: without it the host's launches are what is measured."""
    if cases.device != "cuda":
        return step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def decode(cases: Cases, model) -> float:
    steps = 4 if cases.quick else 250
    step = recorded(cases, decode_steps(model, 512))
    for _ in range(5):
        step()
    cases.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    cases.synchronize()
    return steps / (time.perf_counter() - begin)


def compiled_decode(cases: Cases, model) -> float:
    """generate() with a static cache, which compiles the model on a GPU."""
    ids = torch.randint(model.config.vocab_size, (1, 128), device=cases.device)
    ask = dict(attention_mask=torch.ones_like(ids), do_sample=False, cache_implementation="static")
    few, many = (2, 6) if cases.quick else (20, 220)

    def generate(tokens: int) -> float:
        begin = time.perf_counter()
        # The cache has one size, so that nothing is compiled anew.
        model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, max_cache_len=128 + many, **ask)
        cases.synchronize()
        return time.perf_counter() - begin

    generate(many)
    generate(few)
    return (many - few) / (generate(many) - generate(few))


def prefill(cases: Cases, model, tokens: int) -> float:
    ids = torch.randint(model.config.vocab_size, (1, tokens), device=cases.device)
    return tokens / cases.seconds(lambda: model(ids, logits_to_keep=1, use_cache=True))


def throughput(cases: Cases, model) -> float:
    """Continuous batching; from the first request's start to the last one's end, without what it prepares before."""
    import transformers

    asked = prompts(2 if cases.quick else 256, model.config.vocab_size)
    outputs = 4 if cases.quick else 562  # the mean of 100..1024: one length for all is what it takes
    settings = model.generation_config
    settings.max_new_tokens, settings.do_sample, settings.temperature = outputs, True, 0.6
    # Without a GPU it would take most of the machine's memory.
    small = transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64) if cases.device == "cpu" else None
    replies = list(model.generate_batch(asked, generation_config=settings, continuous_batching_config=small).values())
    errors = [reply.error for reply in replies if reply.error]
    if errors or len(replies) < len(asked):
        raise RuntimeError(f"{len(asked) - len(replies) + len(errors)} requests failed: {errors[:1]}")
    seconds = max(reply.lifespan[1] for reply in replies) - min(reply.lifespan[0] for reply in replies)
    return sum(len(reply.generated_tokens) for reply in replies) / seconds


def losses(adapted, ids: torch.Tensor, in_pieces: bool) -> torch.Tensor:
    """In pieces: of 1024 rows of logits at a time, computed again on the way back."""
    if not in_pieces:
        return adapted(input_ids=ids, labels=ids, use_cache=False).loss
    base = adapted.get_base_model()
    hidden = base.model(input_ids=ids, use_cache=False).last_hidden_state[0, :-1]
    targets = ids[0, 1:]

    def of_rows(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(base.lm_head(rows).float(), wanted, reduction="sum")

    pieces = zip(hidden.split(1024), targets.split(1024))
    return sum(checkpoint(of_rows, rows, wanted, use_reentrant=False) for rows, wanted in pieces) / targets.numel()


def train(cases: Cases, model, in_pieces: bool, again: bool) -> float:
    import peft

    tokens = 64 if cases.quick else 8192
    # Factors in BF16 like the weights: in FP32 they would keep each projection's inputs once more, in FP32.
    settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS)
    adapted = peft.get_peft_model(model, settings, autocast_adapter_dtype=False).train()
    if again:
        adapted.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    try:
        optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=1e-5)
        ids = torch.randint(model.config.vocab_size, (1, tokens), device=cases.device)

        def step() -> None:
            losses(adapted, ids, in_pieces).backward()
            optimizer.step()
            optimizer.zero_grad()

        return tokens / cases.seconds(step, rounds=3)
    finally:
        if again:
            adapted.gradient_checkpointing_disable()
        adapted.unload().eval()


def lora_step(cases: Cases, model) -> float:
    """As transformers does it; where memory is short, the logits in pieces, then the activations again."""
    for in_pieces, again in ((False, False), (True, False), (True, True)):
        try:
            return train(cases, model, in_pieces, again)
        except torch.OutOfMemoryError as error:
            print(f"LoRA step, pieces {in_pieces}, activations again {again}: {str(error)[:120]}", file=sys.stderr, flush=True)
        cases.free()
    raise RuntimeError("no memory for a LoRA step")


def engine(cases: Cases, shape: str) -> None:
    model = random_model(shape, cases.device)
    with torch.inference_mode():
        cases.case(f"{shape}: decode, one stream", "tokens/s", lambda: decode(cases, model), 15)
        for tokens in (2048, 8192):
            size = tokens // (64 if cases.quick else 1)
            cases.case(f"{shape}: prefill of {tokens}", "tokens/s", lambda: prefill(cases, model, size))
    cases.case(f"{shape}: LoRA step of 8192", "tokens/s", lambda: lora_step(cases, model), 30)
    # Its own thread computes: what one made in inference mode it could not write.
    with torch.no_grad():
        cases.case(f"{shape}: offline throughput, 256 requests", "tokens/s", lambda: throughput(cases, model), 40)


def compiled(cases: Cases, shape: str) -> None:
    model = random_model(shape, cases.device)
    with torch.inference_mode():
        cases.case(f"{shape}: decode, one stream", "tokens/s", lambda: compiled_decode(cases, model), 60)


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
    parser.add_argument("--seconds", type=float, default=145)
    options = parser.parse_args()
    cases = Cases(options.device, options.quick, options.seconds, options.out)
    kernels(cases)
    # What takes longest to prepare comes last.
    for part in (engine, compiled):
        for shape in options.shapes:
            if time.monotonic() < cases.deadline:
                part(cases, shape)
                cases.free()
    beside(cases.results, options.beside)


main()
