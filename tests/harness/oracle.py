"""What transformers says, asked in a process of its own: one JSON question a line, one answer a line.

transformers imports a package named `kernels`, so this process must not see our folder of that name; the first
line that it writes holds its module path, for the test that checks it.
"""

import json
import sys

from transformers import AutoTokenizer
from transformers.utils import logging

logging.set_verbosity_error()


def answer(question: dict, known: dict) -> object:
    source = tuple(question["source"])
    if source not in known:
        folder, file = source
        known[source] = AutoTokenizer.from_pretrained(folder, **({"gguf_file": file} if file else {}))
    tokenizer = known[source]
    if "messages" in question:
        return tokenizer.apply_chat_template(
            question["messages"], add_generation_prompt=True, return_dict=False, **question["variables"]
        )
    if "ids" in question:
        return tokenizer.decode(question["ids"])
    return tokenizer.encode(question["text"], add_special_tokens=False)


def main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    kernels = getattr(sys.modules.get("kernels"), "__file__", None)
    print(json.dumps({"path": sys.path, "kernels": kernels}), file=out, flush=True)
    known: dict = {}
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), known)), file=out, flush=True)


if __name__ == "__main__":
    main()
