"""Write sampling-goldens.json: exact distributions after every control of sampling (NumPy, float64).

    python test/goldens/make_sampling_goldens.py

The order: allowed ids, bad words, stop ids before min_tokens, logit bias, repetition, frequency and presence penalty;
division by the temperature; min_p drops what is less probable than min_p times the best; top_k keeps every logit that
reaches the k-th value, ties included; top_p drops, from the least probable up, what lies within the cumulative 1 - p of the
remaining distribution, and keeps at least one. Thresholds keep a distance from every probability, so that float32 decides
alike. Logits are hashed (hash_weights.py); `step` rounds them to multiples of it, which makes ties. The history is that of
the case: `prompt` tokens, then `output` tokens.
"""
import json
from pathlib import Path

import numpy as np

from hash_weights import hash_uniform

VOCAB = 96
MARGIN = 1e-5
PROMPT = [4, 8, 15, 16, 23, 42, 8]
OUTPUT = [7, 7, 42, 50, 61, 7, 3, 9]
HISTORY = {"prompt": PROMPT, "output": OUTPUT}

FILTERS = [
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
    {"name": "all-filters", "minP": 0.01, "topK": 20, "topP": 0.85, "temperature": 1.6},
]

CONTROLS = [
    {"name": "repetition", **HISTORY, "repetitionPenalty": 1.4},
    {"name": "repetition-below-1", **HISTORY, "repetitionPenalty": 0.6},
    {"name": "repetition-of-the-prompt", "prompt": PROMPT, "output": [], "repetitionPenalty": 2.0},
    {"name": "frequency", **HISTORY, "frequencyPenalty": 1.3},
    {"name": "frequency-negative", **HISTORY, "frequencyPenalty": -0.7},
    {"name": "frequency-spares-the-prompt", "prompt": PROMPT, "output": [], "frequencyPenalty": 2.0},
    {"name": "presence", **HISTORY, "presencePenalty": 1.7},
    {"name": "penalties", **HISTORY, "repetitionPenalty": 1.2, "frequencyPenalty": 0.5, "presencePenalty": -0.4},
    {"name": "bias", **HISTORY, "bias": [[0, 100.0], [1, 99.5], [2, -100.0], [95, 98.25]]},
    {"name": "bias-before-penalties", **HISTORY, "bias": [[7, 5.5], [50, -5.5]], "repetitionPenalty": 1.5,
     "frequencyPenalty": 0.25},
    {"name": "allowed", **HISTORY, "allowedIds": [1, 7, 42, 90]},
    {"name": "allowed-one", **HISTORY, "allowedIds": [77]},
    {"name": "bad-words", **HISTORY, "badWords": [[5], [9, 6], [3, 9, 10], [7, 9, 11], [3, 12]]},
    {"name": "bad-words-beat-bias", **HISTORY, "badWords": [[5]], "bias": [[5, 100.0]]},
    {"name": "allowed-and-bad", **HISTORY, "allowedIds": [1, 5, 6], "badWords": [[9, 6]]},
    {"name": "min-tokens", **HISTORY, "stopIds": [20, 21, 22], "minTokens": 9, "bias": [[20, 50.0]]},
    {"name": "min-tokens-reached", **HISTORY, "stopIds": [20, 21, 22], "minTokens": 8, "bias": [[20, 5.0]]},
    {"name": "everything", **HISTORY, "repetitionPenalty": 1.2, "frequencyPenalty": 0.5, "presencePenalty": 0.4,
     "bias": [[7, 4.0], [30, -2.0]], "badWords": [[9, 33]], "stopIds": [34], "minTokens": 20, "temperature": 1.5,
     "minP": 0.01, "topK": 30, "topP": 0.93},
]


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max())
    return e / e.sum()


def logits_of(case: dict) -> np.ndarray:
    logits = hash_uniform(f"sampling/{case['name']}", VOCAB, 0.0, 6.0)
    if "step" in case:
        logits = (np.round(logits.astype(np.float64) / case["step"]) * case["step"]).astype(np.float32)
    return logits.astype(np.float64)


def controlled(logits: np.ndarray, prompt=(), output=(), repetitionPenalty=1.0, frequencyPenalty=0.0, presencePenalty=0.0,
               bias=(), allowedIds=None, badWords=(), stopIds=(), minTokens=0, **_) -> np.ndarray:
    logits = logits.copy()
    if allowedIds is not None:
        logits[[i for i in range(VOCAB) if i not in allowedIds]] = -np.inf
    for *before, last in badWords:
        if list(output)[len(output) - len(before):] == before:
            logits[last] = -np.inf
    if len(output) < minTokens:
        logits[list(stopIds)] = -np.inf
    for token, value in bias:
        logits[token] += value
    for token in set(prompt) | set(output):
        logits[token] = logits[token] / repetitionPenalty if logits[token] > 0 else logits[token] * repetitionPenalty
    for token in set(output):
        logits[token] -= frequencyPenalty * list(output).count(token) + presencePenalty
    return logits


def filtered(logits: np.ndarray, temperature=1.0, minP=0.0, topK=0, topP=1.0, **_) -> np.ndarray:
    scaled = logits / temperature
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


def golden(case: dict) -> dict:
    probabilities = filtered(controlled(logits_of(case), **case), **case)
    kept = np.flatnonzero(probabilities)
    print(f"{case['name']:28s} keeps {len(kept)}")
    return {**case, "ids": kept.tolist(), "probabilities": [float(f"{p:.9g}") for p in probabilities[kept]]}


def main() -> None:
    groups = {"filters": FILTERS, "controls": CONTROLS}
    bodies = []
    for name, cases in groups.items():
        lines = ",\n".join(json.dumps(golden(case), separators=(",", ":")) for case in cases)
        bodies.append(f'"{name}":[\n{lines}\n]')
    text = f'{{"vocab":{VOCAB},\n' + ",\n".join(bodies) + "}\n"
    Path(__file__).with_name("sampling-goldens.json").write_text(text)


if __name__ == "__main__":
    main()
