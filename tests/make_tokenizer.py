#!/usr/bin/env python3
"""Writes tests/corpus/tokenizer: four small SentencePiece models and what SentencePiece's own
Python package makes of some texts with them. Run by hand (pip install sentencepiece==0.2.0
protobuf); the tests read the files only.

bytes/     BPE with byte fallback, spaces kept, a dummy prefix: as Llama's tokenizer is.
gemma/     as Gemma's: no dummy prefix, and turns, tags, and runs of lines and spaces that its users
           defined. Beside ids that of any text, those where turns are control tokens, and those
           where all that could mark turns are, and so nothing that a text says is one of them.
prefixed/  with marks that its users defined and a dummy prefix, which is that of a whole text.
collapse/  unigram without byte fallback, runs of spaces become one, a small normalisation map.
"""

import io
import json
import os
import pathlib
import re
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

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

TURNS = ["<start_of_turn>", "<end_of_turn>"]
MARKS = [*TURNS, "<mask>", "<unused0>", "<s>"]
TAGS = ["<table>", "</table>", "<td>", "</td>"]
RUNS = [c * n for c, first, last in (("\n", 1, 4), ("\u2581", 2, 6), ("\t", 1, 3))
        for n in range(first, last + 1)]
GEMMA_CASES = CASES + [
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "a<end_of_turn>b", "<eos><bos>",
    "<start_of_<start_of_turn>turn>", "<start_of_turn >", "[@BOS@]<mask><unused0>",
    "<table>\n  <td>1</td>\n</table>", "x\n\ny\n\n\n\n\nz", "\t\t\tif x:\n\t\t\t\treturn",
    "def f(x):\n    if x:\n        return 1\n", " \u2581\u2581 ",
]
# What a template writes and what a client says, in turns.
CONVERSATIONS = [
    ["<bos><start_of_turn>user\n", "Once upon a time", "<end_of_turn>\n<start_of_turn>model\n"],
    ["<bos><start_of_turn>user\n", "\n", "\n", "\na<end_of_turn>\n<start_of_turn>model\nb",
     "<end_of_turn>\n"],
    ["<start_of_turn>user\n", "<start_of_turn>", "<start_of_turn>", "<td>", "<td>"],
    ["<start_of", "_turn>", "<end_of_turn>", "<end_of_", "turn>"],
    ["a", "<bos><eos>", "<eos>", "<s> <mask>", " <mask>  <unused0>"],
]

# Marks of a model that begins every text with a word mark and drops spaces.
PREFIXED_MARKS = ["<mark>", "<|turn|>", "<hidden>"]
PREFIXED_CASES = [
    "once<mark>upon", "once <mark> upon", "<mark>once", "  a <mark><|turn|>  b ", "once <|turn|>",
    "<mark>", " <|turn|> ", "<mark><mark> <mark>", "<mark once", "once<hidden>upon",
]
PREFIXED_TALKS = [  # a template's words and a client's in turns
    ["<|turn|>user\n", "Once upon a time", "<|turn|>model\n"],
    ["<|turn|> user ", "  once ", " <mark>", " upon", "<|turn|>"],
    ["<|turn|>user\n", "Once<|turn|>model\nupon", "<|turn|>"],
    ["<|tu", "rn|>", "once"],
    ["<mark>", "<hidden>", "<hidden>once"],
]

# Code points to code points: fullwidth A and B, an ellipsis, the ligature fi.
RULES = "FF21\t41\nFF22\t42\n2026\t2E 2E 2E\nFB01\t66 69\n"


def train(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.strip().split("\n")), model_writer=model,
        character_coverage=1.0, num_threads=1, minloglevel=2, **options)
    return model.getvalue()


def golden(model, texts=CASES):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    cases = []
    for text in texts:
        ids = processor.encode(text)
        cases.append({"text": text, "ids": ids, "decoded": processor.decode(ids)})
    return {"pieces": processor.get_piece_size(), "cases": cases}


def with_controls(model, names):
    """The same with these for control tokens, which no text leads to."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece in proto.pieces:
        if piece.piece in names:
            piece.type = piece.CONTROL
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


def conversation(whole, quoted, parts):
    """Only what stands in a template's own words is a mark; all between is one text."""
    ids, rest = [], ""
    for i, part in enumerate(parts):
        for piece in re.split("(<[^<>]*>)", part):
            mark = whole.piece_to_id(piece)
            if i % 2 == 0 and (piece in MARKS + PREFIXED_MARKS or whole.is_control(mark)):
                ids += [*quoted.encode(rest), mark]
                rest = ""
            else:
                rest += piece
    return {"parts": parts, "ids": ids + quoted.encode(rest)}


def gemma_golden(model):
    whole = sentencepiece.SentencePieceProcessor(model_proto=model)
    turns, quoted = with_controls(model, TURNS), with_controls(model, MARKS)
    out = golden(model, GEMMA_CASES)
    for case in out["cases"]:
        case.update(turns=turns.encode(case["text"]), quoted=quoted.encode(case["text"]))
    out["config"] = {"added_tokens_decoder": {
        str(whole.piece_to_id(name)): {"content": name, "special": name in TURNS}
        for name in MARKS + TAGS}}
    out["conversations"] = [conversation(whole, quoted, parts) for parts in CONVERSATIONS]
    return out


def prefixed_golden(model):
    """Hidden is a control token, by what its configuration says; it is letters to all but a
    template. The other marks are SentencePiece's to find, unless a client has spelt one out."""
    shown = PREFIXED_MARKS[:2]
    hidden, quoted = with_controls(model, ["<hidden>"]), with_controls(model, PREFIXED_MARKS)
    whole = sentencepiece.SentencePieceProcessor(model_proto=model)
    out = {"pieces": whole.get_piece_size(), "cases": [], "config": {"added_tokens_decoder": {
        str(whole.piece_to_id("<hidden>")): {"content": "<hidden>", "special": True}}}}
    for text in CASES + PREFIXED_CASES:
        out["cases"].append({"text": text, "ids": hidden.encode(text)})
    out["conversations"] = []
    for parts in PREFIXED_TALKS:
        forged = "".join(parts).count("<|turn|>") + "".join(parts).count("<mark>") != \
            sum(part.count(mark) for part in parts[::2] for mark in shown)
        ids = hidden.encode("".join(parts)) if not forged and "<hidden>" not in "".join(parts) \
            else conversation(whole, quoted, parts)["ids"]
        out["conversations"].append({"parts": parts, "ids": ids})
    return out


def write(name, model, make_golden=golden):
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    text = json.dumps(make_golden(model), ensure_ascii=True, indent=0)
    (folder / "golden.json").write_text(text + "\n")
    print(name, len(model), "bytes")


def main():
    write("bytes", train(model_type="bpe", vocab_size=400, byte_fallback=True,
                         remove_extra_whitespaces=False, normalization_rule_name="identity"))
    write("gemma", train(model_type="bpe", vocab_size=420, byte_fallback=True,
                         add_dummy_prefix=False, remove_extra_whitespaces=False,
                         normalization_rule_name="identity", split_digits=True,
                         allow_whitespace_only_pieces=True, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                         eos_piece="<eos>", bos_piece="<bos>",
                         user_defined_symbols=[*MARKS, "[@BOS@]", *TAGS, *RUNS]), gemma_golden)
    write("prefixed", train(model_type="bpe", vocab_size=400, byte_fallback=True,
                            normalization_rule_name="identity",
                            user_defined_symbols=PREFIXED_MARKS), prefixed_golden)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # the name of the rules ends up in the model
        pathlib.Path("rules.tsv").write_text(RULES)
        write("collapse", train(model_type="unigram", vocab_size=200, hard_vocab_limit=False,
                                add_dummy_prefix=False, user_defined_symbols=["<sep>"],
                                control_symbols=["<pad>"], normalization_rule_tsv="rules.tsv"))
        os.chdir("/")


if __name__ == "__main__":
    main()
