#!/usr/bin/env python3
"""Writes tests/corpus/hf, small tokenizer.json files where its fuzzer begins, and
tests/corpus/tokenizer/hf_golden.json, what Hugging Face's tokenizers make of some texts with them.
Run by hand with the packages of tests/requirements.txt; the unit tests read the files only. Names
of families: only theirs are made, as training does not always break ties in the same way."""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "oracle"))
import tokenizer_json as oracle  # noqa: E402  (lives in the folder just added)
import tokenizers  # noqa: E402

SIZES = {"llama3": 420, "qwen": 420, "gpt2": 400, "deepseek": 400, "behaviors": 500, "llama2": 360,
         "llama2_old": 360, "metaspace": 200, "gemma": 400, **{name: 400 for name in oracle.SPLITS}}


def golden(tokenizer, text):
    tokenizer.encode_special_tokens = False
    named = tokenizer.encode(text).ids
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {"text": text, "named": named, "ids": ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=True)}


def main():
    path = HERE / "corpus/tokenizer/hf_golden.json"
    goldens = json.loads(path.read_text()) if len(sys.argv) > 1 else {}
    (HERE / "corpus/hf").mkdir(exist_ok=True)
    for name in sys.argv[1:] or SIZES:
        size, cases = SIZES[name], oracle.CASES + (oracle.GEMMA_CASES if name == "gemma" else [])
        document = {**oracle.FAMILIES, **oracle.SPLITS}[name](vocab=size)
        text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
        (HERE / "corpus/hf" / f"{name}.json").write_text(text)
        tokenizer = tokenizers.Tokenizer.from_str(text)
        goldens[name] = [golden(tokenizer, case) for case in cases]
    families = (json.dumps(name) + ":[\n" + ",\n".join(json.dumps(case, separators=(",", ":"))
                                                      for case in cases) + "\n]"
                for name, cases in goldens.items())
    path.write_text("{\n" + ",\n".join(families) + "\n}\n")


if __name__ == "__main__":
    main()
