"""Weights and token ids from one integer hash, so that tests commit goldens only.

test/fixtures/hash-weights.ts is the same arithmetic in TypeScript; families.test.ts compares checksums.
All steps are exact in both languages: 32-bit integer operations, then IEEE doubles, then one rounding to float32.
"""
import math

import numpy as np


def name_hash(name: str) -> int:
    """FNV-1a over the UTF-8 bytes."""
    h = 0x811C9DC5
    for byte in name.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def hash_uint32(name: str, count: int) -> np.ndarray:
    """count values: the murmur3 finaliser over index * 2654435761 + name_hash(name)."""
    x = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(name_hash(name))
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def hash_uniform(name: str, count: int, center: float, amplitude: float) -> np.ndarray:
    """float32 values in [center - amplitude, center + amplitude) with 24 random bits."""
    unit = (hash_uint32(name, count) >> np.uint32(8)).astype(np.float64) / 8388608.0 - 1.0
    return (center + amplitude * unit).astype(np.float32)


def hash_tokens(name: str, count: int, vocab: int) -> list[int]:
    return (hash_uint32(name, count) % np.uint32(vocab)).tolist()


def tensor_values(family: str, name: str, shape: tuple[int, ...], plan: dict) -> np.ndarray:
    """One tensor of a family: matrices have standard deviation gain / sqrt(columns), norm weights lie around 1."""
    kind = ".".join(name.split(".")[-2:])
    seed = f"{family}/{name}"
    count = math.prod(shape)
    if kind.endswith("norm.weight"):
        return hash_uniform(seed, count, 1.0, plan["normAmplitude"]).reshape(shape)
    gain = plan["gains"][kind]
    amplitude = gain * math.sqrt(3.0 / shape[1]) if len(shape) == 2 else gain
    return hash_uniform(seed, count, 0.0, amplitude).reshape(shape)


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """Nearest even, kept as float32. Finite input only."""
    bits = values.view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def checksum(values: np.ndarray) -> int:
    """FNV-1a over the float32 bit patterns, one 32-bit word at a time."""
    h = 0x811C9DC5
    for word in values.astype(np.float32).view(np.uint32).reshape(-1).tolist():
        h = ((h ^ word) * 0x01000193) & 0xFFFFFFFF
    return h
