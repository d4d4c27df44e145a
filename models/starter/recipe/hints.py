"""Where some heads should look, for training: which earlier tokens a token of an answer is made from.

A hint is (kind, position, positions to attend to). Kinds:

    copy   a word of the answer that was written before: the same place in its earlier copies
    which  an answer to a request for a tool: the object of the request
    name   the object in a tool's description: the first token of the tool's name
    same   the object of a request: the same object in a description
"""
import re

WORD = re.compile(r"[A-Za-z]+|\d+")
COMMON = frozenset("""tool tools call name arguments im start end assistant user system think a an the i is are not do have
for that to of it and in wants type object tool_call true false null""".split())


def hints_of(text, offsets, learn, c):
    """The hints, and for the object of each request (its position, whether a tool fits)."""
    at = [0] * (len(text) + 1)  # the token of each character
    for i, (start, end) in enumerate(offsets):
        at[start:end] = [i] * (end - start)
    hints, fits = copies(text, offsets, learn, at), []
    if not c["tools"]:
        return hints, fits
    described, start = {}, 0
    for tool in c["tools"]:
        f = tool["function"]
        name = text.index(f'"name": "{f["name"]}"', start) + len('"name": "')
        start = text.index(f["description"], name)
        end = start + len(f["description"]) - 2  # the last letter of the object
        hints.append(("name", at[end], [at[name]]))
        described.setdefault(f["description"].split()[-1].rstrip("."), []).append(at[end])
    where = 0
    for message, answer in zip(c["messages"], c["messages"][1:]):
        if "objects" not in message:
            continue
        where = text.find("<|im_start|>user\n" + message["content"], where)
        objects, spot = [], where
        for word in message["objects"]:
            found = re.compile(rf"\b{word}\b").search(text, spot)
            spot = found.end()
            objects.append(at[spot - 1])
            if word in described:
                hints.append(("same", at[spot - 1], described[word]))
            fits.append((at[spot - 1], "tool_calls" in answer))
        hints += which(text, learn, at, text.index("<|im_start|>assistant\n", where), objects)
        where = spot
    return hints, fits


def which(text, learn, at, start, objects):
    """From the first learned token of the turn to the end of the last name, or three tokens of the answer."""
    end = text.index("<|im_end|>", start)
    calls = [m.end() for m in re.finditer('"name": "[^"]*', text[start:end])]
    thought = text.find("</think>", start, end)
    last = at[start + calls[-1] - 1] if calls else at[thought + len("</think>") + 2 if thought >= 0 else start] + 3
    ends, hints = [at[start + e - 1] for e in calls], []
    for j in range(at[start], min(last, at[end]) + 1):
        if learn[j]:
            done = sum(e < j for e in ends)
            hints.append(("which", j - 1, [objects[min(done, len(objects) - 1)]]))
    return hints


def copies(text, offsets, learn, at):
    seen, hints = {}, []
    for m in WORD.finditer(text):
        word, first = m.group().lower(), at[m.start()]
        if word in COMMON:
            continue
        sources = seen.setdefault(word, [])
        if 0 < len(sources) <= 8:
            for j in range(first, at[m.end() - 1] + 1):
                if learn[j]:
                    inside = max(0, offsets[j][0] - m.start())
                    hints.append(("copy", j - 1, sorted({at[s + inside] for s in sources})))
        if not learn[first]:
            sources.append(m.start())
    return hints
