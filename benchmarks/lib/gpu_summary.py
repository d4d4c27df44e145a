"""Joins what scripts/gpu-check left in a folder into FOLDER/summary.json, in the form of benchmarks/baselines: a machine and its cases.

Usage: python3 gpu_summary.py FOLDER
A case is named after its file: "8b-bf16: decode, one stream", "kernels: product m=1 n=6144 k=4096". Where a peer has a case of that name it
stands beside it, with the ratio of ours to theirs.
"""
import csv
import json
import os
import platform
import sys
from pathlib import Path


def machine(folder: Path, dates: list[str]) -> dict:
    found = {"gpu": "unknown", "cores": os.cpu_count(), "os": f"{platform.system()} {platform.release()}", "date": max(dates, default="")}
    try:
        rows = list(csv.reader((folder / "device.csv").read_text().splitlines(), skipinitialspace=True))
        gpu = dict(zip(rows[0], rows[1]))
        found.update(gpu=gpu["name"], driver=gpu["driver_version"], gpu_memory=gpu["memory.total [MiB]"])
    except (OSError, IndexError, KeyError):
        pass
    return found


def prefix_of(file: Path) -> str:
    return file.stem.removeprefix("engine-")


def case_of(name: str, case: dict, peers: dict) -> dict:
    ours = {measure: case[measure] for measure in ("median", "min", "max")}
    joined = {"name": name, "tandem": ours, "unit": case["unit"]}
    if case.get("limit_share"):
        joined["limit_share"] = case["limit_share"]
    peer = peers.get(name)
    if peer and peer["unit"] == case["unit"] and peer["median"]:
        ratio = case["median"] / peer["median"]
        joined.update(peer={"median": peer["median"]}, peer_name=peer["peer_name"], ratio=round(ratio, 4))
    return joined


def peers_of(folder: Path) -> dict:
    """By the names that ours have: of engines those with BF16 weights."""
    try:
        found = json.loads((folder / "peers.json").read_text())
    except (OSError, ValueError):
        return {}
    name = f"PyTorch {found['torch']}, transformers {found.get('transformers', '?')}"
    renamed = {}
    for case in found["cases"]:
        shape, colon, rest = case["name"].partition(": ")
        renamed[f"{shape}-bf16: {rest}" if colon else f"kernels: {case['name']}"] = {**case, "peer_name": name}
    return renamed


def main() -> None:
    folder = Path(sys.argv[1])
    peers = peers_of(folder)
    cases, dates, settings = [], [], {}
    for file in sorted([*folder.glob("kernels*.json"), *folder.glob("engine-*.json")]):
        try:
            found = json.loads(file.read_text())
        except ValueError as error:
            print(f"{file}: {error}", file=sys.stderr)
            continue
        prefix = prefix_of(file)
        dates.append(found.get("date", ""))
        settings[prefix] = {key: found[key] for key in ("shape", "matmul", "attention", "adapters", "early_launch") if found.get(key)}
        cases += [case_of(f"{prefix}: {case['name']}", case, peers) for case in found["cases"]]
    summary = {"machine": machine(folder, dates), "runs": settings, "cases": cases}
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{len(cases)} cases in {folder / 'summary.json'}")


main()
