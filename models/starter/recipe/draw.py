"""Draw held-out conversations as token ids, for tests of the engine's own arithmetic (test/native/quality.ts).

    python draw.py --model .. --count 160 --out ../../../test/goldens/starter-conversations.json

Each has its ids, the positions that the assistant wrote and, where one answer is right, the prompt and that answer.
"""
import argparse
import json
from pathlib import Path

from transformers import AutoTokenizer

from generate import Source, conversation
from train import encode


def drawn(tokenizer, c):
    ids, learn = encode(tokenizer, c)
    item = {"ids": ids, "learn": [i for i, learned in enumerate(learn) if learned]}
    if c["check"] in ("exact", "calls"):
        prompt = tokenizer.apply_chat_template(c["messages"][:-1], tools=c["tools"], tokenize=False,
                                               add_generation_prompt=True, enable_thinking=c["thinking"])
        item["prompt"] = tokenizer.encode(prompt, add_special_tokens=False)
        want = c["messages"][-1]
        item["want"] = want["content"] if c["check"] == "exact" else [call["function"] for call in want["tool_calls"]]
    return item


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path(".."))
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=99)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer, source, items = AutoTokenizer.from_pretrained(args.model), Source(args.seed, "test"), []
    while len(items) < args.count:
        item = drawn(tokenizer, conversation(source))
        if len(item["ids"]) <= 1000:
            items.append(item)
    args.out.write_text("[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in items) + "\n]\n")


main()
