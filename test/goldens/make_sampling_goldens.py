"""Write sampling-goldens.json: exact distributions after temperature, min_p, top_k and top_p, in that order (NumPy, float64).

    python test/goldens/make_sampling_goldens.py

min_p drops what is less probable than min_p times the best; top_k keeps every logit that reaches the k-th value, ties
included; top_p then drops, from the least probable up, what lies within the cumulative 1 - p of the remaining
distribution, and keeps at least one. Thresholds keep a distance from every probability, so that float32 decides alike.
Logits are hashed (hash_weights.py); `step` rounds them to multiples of it, which makes ties.
"""
import json
from pathlib import Path

import numpy as np

from hash_weights import hash_uniform

VOCAB = 96
MARGIN = 1e-5

CASES = [
    {"name": "plain"},
    {"name": "cold", "temperature": 0.35},
    {"name": "hot", "temperature": 2.5},
    {"name": "top-k-1", "topK": 1},
    {"name": "top-k-7", "topK": 7},
    {"name": "top-k-above-vocab", "topK": 5000},
    {"name": "top-k-ties", "topK": 5, "step": 1.0},
    {"name": "top-k-ties-hot", "topK": 9, "step": 0.5, "temperature": 1.7},
    {"name": "top-p-90", "topP": 0.9},
    {"name": "top-p-50-hot", "topP": 0.5, "temperature": 1.9},
    {"name": "top-p-tiny", "topP": 0.000001},
    {"name": "min-p-10", "minP": 0.1},
    {"name": "min-p-1", "minP": 1.0},
    {"name": "min-p-cold", "minP": 0.02, "temperature": 0.8},
    {"name": "top-k-then-top-p", "topK": 12, "topP": 0.7, "temperature": 1.4},
    {"name": "min-p-then-top-p", "minP": 0.05, "topP": 0.8, "temperature": 1.3},
    {"name": "all", "minP": 0.01, "topK": 20, "topP": 0.85, "temperature": 1.6},
]


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max())
    return e / e.sum()


def logits_of(case: dict) -> np.ndarray:
    logits = hash_uniform(f"sampling/{case['name']}", VOCAB, 0.0, 6.0)
    if "step" in case:
        logits = (np.round(logits.astype(np.float64) / case["step"]) * case["step"]).astype(np.float32)
    return logits


def distribution(logits: np.ndarray, temperature=1.0, minP=0.0, topK=0, topP=1.0, **_) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    if minP > 0:
        ratio = np.exp(scaled - scaled.max())
        assert minP == 1 or np.abs(ratio - minP).min() > MARGIN
        scaled = np.where(ratio < minP, -np.inf, scaled)
    if 0 < topK < len(scaled):
        scaled = np.where(scaled < np.sort(scaled)[-topK], -np.inf, scaled)
    if topP < 1:
        probabilities = softmax(scaled)
        order = np.argsort(probabilities, kind="stable")
        cumulative = np.cumsum(probabilities[order])
        assert np.abs(cumulative - (1 - topP))[probabilities[order] > 0].min() > min(MARGIN, topP / 10)
        dropped = order[:-1][cumulative[:-1] <= 1 - topP]
        scaled[dropped] = -np.inf
    return softmax(scaled)


def main() -> None:
    out = []
    for case in CASES:
        probabilities = distribution(logits_of(case), **case)
        kept = np.flatnonzero(probabilities)
        out.append({**case, "ids": kept.tolist(), "probabilities": [float(f"{p:.9g}") for p in probabilities[kept]]})
        print(f"{case['name']:20s} keeps {len(kept)}")
    lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in out)
    Path(__file__).with_name("sampling-goldens.json").write_text(f'{{"vocab":{VOCAB},"cases":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
