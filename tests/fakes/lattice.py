"""Lattice files and folders of measurements, written from arrays: a second writer beside the engine's own."""

import hashlib
import itertools
import json
from pathlib import Path

import numpy as np

GREEDY = {"temperature": 0, "top_p": 1, "top_k": 0, "seed": 0}
TARGET, DRAFTER = "a" * 64, "b" * 64
TIMES = {"draft_us": 1.0, "verify_us": 2.0, "accept_us": 0.5, "host_us": 0.25}
CARD = {
    **dict.fromkeys(("gpu", "driver", "triton", "cuda", "power_cap_w", "uuid", "clocks_mhz")),
    "torch": "2",
    "harness": "0.1.0",
    "cpu": "toy",
    "cores": 2,
    "sandbox": "none",
    "date": "2026-01-02T03:04:05+00:00",
}


def some_ranks(positions, depths, ranks, vocabulary, seed=0):
    """Random ids, unlike at each depth, and log-probabilities in order: [position, depth, rank] both."""
    random = np.random.default_rng(seed)
    ids = random.random((positions, depths, vocabulary)).argsort(-1)[..., :ranks]
    logprobs = np.log(-np.sort(-random.dirichlet(np.ones(ranks + 1), (positions, depths)), -1)[..., :ranks])
    return ids, logprobs.astype(np.float16)


def write_lattice(path, tokens, start, ids, logprobs, vocabulary=512, parts=1, header=None):
    """Writes one answer's lattice; `header` goes over what its header would say.  Returns the paths of its parts."""
    positions, depths, ranks = ids.shape
    assert positions == len(tokens) - start
    id_bytes = 2 if vocabulary <= 1 << 16 else 4
    parts = min(parts, positions)
    bounds = np.linspace(0, positions, parts + 1).astype(int).tolist()
    paths = []
    for part, (first, last) in enumerate(itertools.pairwise(bounds)):
        told = {
            "target": {"digest": TARGET, "widen": 1, "jitter": 0},
            "drafter": DRAFTER,
            "mode": "exact",
            "dtype": "float32",
            "request": "a#0",
            "sampling": GREEDY,
            "block": depths + 1,
            "vocabulary": vocabulary,
            "tokens": len(tokens),
            "start": start,
            "depths": depths,
            "ranks": ranks,
            "id_bytes": id_bytes,
            "part": part,
            "parts": parts,
            "first": start + first,
            "positions": last - first,
            **(header or {}),
        }
        body = b"spt-lattice 1\n" + json.dumps(told).encode()
        body += b" " * (-(len(body) + 1) % 64) + b"\n"
        for here, there in zip(ids[first:last], logprobs[first:last], strict=True):
            body += here.astype(f"<u{id_bytes}").tobytes() + there.astype("<f2").tobytes()
        body += np.asarray(tokens).astype(f"<u{id_bytes}").tobytes()
        paths.append(Path(path) if part == 0 else Path(path).with_suffix(f".{part}.lattice"))
        paths[-1].write_bytes(body + hashlib.sha256(body).digest())
    return paths


def write_measurement(
    folder, answers, depths=3, ranks=4, vocabulary=512, logprobs=None, target=TARGET, drafter=DRAFTER
):
    """Writes a folder of answers {request: (prompt, [ids of each line])}, with random ranks where none are given.

    logprobs: {request: (ids, logprobs)}.  target, drafter: the digests that lattices and summary name.
    Every step accepts its drafts by rank 0, whatever the ranks are.
    """
    folder = Path(folder)
    (folder / "lattices").mkdir(parents=True)
    records, steps, positions = [], [], 0
    of = {"digest": target, "widen": 1, "jitter": 0}
    for number, (request, (prompt, lines)) in enumerate(answers.items()):
        ids = [token for line in lines for token in line]
        tokens = [*prompt, *ids]
        held = (logprobs or {}).get(request) or some_ranks(len(ids), depths, ranks, vocabulary, number)
        file = folder / "lattices" / f"{number:05}.lattice"
        header = {"request": f"{request}#0", "target": of, "drafter": drafter}
        write_lattice(file, tokens, len(prompt), *held, vocabulary=vocabulary, header=header)
        positions += len(ids)
        times = {"prefill_s": 0.5, "decode_s": 1.5}
        about = {"v": 1, "kind": "answer", "request": request, "turn": 0, "category": "toy", "prompt_tok": len(prompt)}
        records.append({**about, "ids": ids, "reason": "length", "lines": [len(line) for line in lines], **times})
        start = len(prompt)
        for step, line in enumerate(lines[1:]):
            about = {"v": 1, "kind": "steps", "request": f"{request}#0", "step": step, "start": start}
            path = [0] * (len(line) - 1)
            steps.append({**about, "anchor": tokens[start], "nodes": depths, "path": path, "tokens": line, **TIMES})
            start += len(line)
    for name, rows in (("answers.jsonl", records), ("steps.jsonl", steps)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_summary(folder, positions, depths, ranks, of, drafter)
    return folder


def write_summary(folder, positions, depths, ranks, target=None, drafter=DRAFTER):
    """Writes `measurement.json` for the files as they are; its counts are not those of the answers."""
    tau = {"tau": 1.0, "tau_all": 1.0}
    names = ("answers", "tokens", "looped_tokens", "steps", "step_tokens", "kept_steps", "kept_tokens")
    counts = dict.fromkeys(names, 1) | tau
    files = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("answers.jsonl", "steps.jsonl")
    }
    summary = {
        "v": 1,
        "kind": "measurement",
        "deployment": {},
        "deployment_digest": None,
        "system": {"tree": "c" * 40, "options": {}},
        "stock": {"tree": "c" * 40, "options": {}},
        "target": target or {"digest": TARGET, "widen": 1, "jitter": 0},
        "drafter": drafter,
        "counts": counts,
        "families": {"toy": counts},
        "times": {"prefill_s": 0.5, "decode_s": 1.5, "lattice_s": 0.1},
        "lattice": {"depths": depths, "ranks": ranks, "positions": positions, "bytes": 0},
        "files": files,
        "card": CARD,
        "date": "2026-01-02T03:04:05+00:00",
    }
    (folder / "measurement.json").write_text(json.dumps(summary))
