#!/usr/bin/env python3
"""Writes tests/corpus/tokenizer: two small SentencePiece models and what SentencePiece's own Python
package makes of some texts with them. Run by hand (pip install sentencepiece==0.2.0); the tests
read the files only.

bytes/     BPE with byte fallback, spaces kept, a dummy prefix: as Llama's tokenizer is.
collapse/  unigram without byte fallback, runs of spaces become one, a small normalisation map.
"""

import io
import json
import os
import pathlib
import tempfile

import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent / "corpus" / "tokenizer"

TEXT = """
The harbour lay quiet in the morning, and the boats moved slowly on the water.
A small girl stood at the end of the pier with a basket of apples and waited for her brother.
"Will he come today?" she asked the old sailor who mended his nets beside the wall.
"He will come when the wind turns," the sailor said, "and the wind always turns."
So they sat together and counted the birds: one, two, three, four, five, six, seven.
In the afternoon the clouds grew dark, the water rose, and the first drops of rain began to fall.
Then, far out beyond the lighthouse, a white sail appeared, and another, and another.
The girl laughed and ran along the stones, and all the apples rolled out of her basket.
Once upon a time there was a fox who could read the stars but not the letters of the town.
He walked from door to door and asked everyone to teach him, and nobody had the time.
At last a baker gave him a loaf of bread with a word written on it in sugar.
The fox ate the word, and it was sweet, and from that day he could read.
int main(void) { return 0; }
x = [1, 2, 3, 10, 100, 2024]; y = {"key": "value", "list": [true, false, null]}
El niño corrió por la montaña. Der Fuß ist müde. La forêt était déjà loin.
"""

CASES = [
    "", " ", "  ", "a", "Once upon a time", " Once upon a time", "Once upon a time ",
    "two  spaces   three    four", "line\nbreak\n\nand\ttab", "the wind always turns.",
    "\u4f60\u597d\uff0c\u4e16\u754c", "caf\u00e9", "cafe\u0301", "\U0001f98a reads \U0001f31f",
    "\U0001f469\u200d\U0001f680", "<s>", "</s> <unk> <0x41>", "\u2581", "a\u2581b", "\ufffd",
    "x = [1, 2, 3]", "UPPER lower 123", "\u00e4\u00f6\u00fc\u00df\u20ac", "e\u0301\u0302\u0303",
    "<sep>", "one<sep>two", "\uff21\uff22 \u2026 \ufb01sh",
    "\u0915\u094d\u0937", "\u202eright to left",
    "z" * 50, " " * 20,
]

# Code points to code points: fullwidth A and B, an ellipsis, the ligature fi.
RULES = "FF21\t41\nFF22\t42\n2026\t2E 2E 2E\nFB01\t66 69\n"


def train(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.strip().split("\n")), model_writer=model,
        character_coverage=1.0, num_threads=1, minloglevel=2, **options)
    return model.getvalue()


def golden(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = []
    for text in CASES:
        ids = processor.encode(text)
        cases.append({"text": text, "ids": ids, "decoded": processor.decode(ids)})
    return {"pieces": processor.get_piece_size(), "cases": cases}


def write(name, model):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    text = json.dumps(golden(model), ensure_ascii=True, indent=0)
    (folder / "golden.json").write_text(text + "\n")
    print(name, len(model), "bytes")


def main():
    write("bytes", train(model_type="bpe", vocab_size=400, byte_fallback=True,
                         remove_extra_whitespaces=False, normalization_rule_name="identity"))
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the name of the rules ends up in the model
        pathlib.Path("rules.tsv").write_text(RULES)
        write("collapse", train(model_type="unigram", vocab_size=200, hard_vocab_limit=False,
                                add_dummy_prefix=False, user_defined_symbols=["<sep>"],
                                control_symbols=["<pad>"], normalization_rule_tsv="rules.tsv"))
        os.chdir("/")


if __name__ == "__main__":
    main()
