#!/usr/bin/env python3
"""Makes tests/corpus/gguf_tokenizers: small vocabularies as GGUF files, written by the gguf package
of llama.cpp's authors, and golden.json, what Hugging Face's tokenizers make of some texts with the
same vocabulary, merges and steps.

    pip install -r tests/requirements.txt gguf==0.19.0 sentencepiece==0.2.0 protobuf
    python3 tests/make_gguf_tokenizers.py

Those of SentencePiece are tests/corpus/tokenizer's, whose goldens are there."""

import copy
import functools
import json
import pathlib
import random
import sys

import gguf
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "oracle"))
import tokenizer_json as oracle  # noqa: E402  (lives in the folder just added)

OUT = HERE / "corpus/gguf_tokenizers"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
LETTERS_1 = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LETTERS_2 = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS_1}*{LETTERS_2}+|"
          rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS_1}+{LETTERS_2}*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
               r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


NOISE = "abXYs 123\n/.,'(é中\u0301"  # of all classes of characters that patterns know
NOISE_CASES = 60


def regex(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


@functools.cache
def noise_model():
    """Of tokens that reach over every cut: a pattern that cuts otherwise has other ids."""
    noise = random.Random(1)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = BYTES
    trainer = trainers.BpeTrainer(vocab_size=560, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(("".join(noise.choices(NOISE, k=9)) for _ in range(4000)),
                                  trainer)
    return json.loads(tokenizer.to_str())["model"]


def made(*steps, nfc=False, whole=False, begin=None, special=("<|eot|>",)):
    document = oracle.byte_level(300, pre_tokenizers.Sequence(list(steps)))
    document["model"] = copy.deepcopy(noise_model())
    if whole:  # a piece that no merge makes
        document["model"]["ignore_merges"] = True
        document["model"]["vocab"]["\u0120unmerged"] = len(document["model"]["vocab"])
    if nfc:
        document["normalizer"] = {"type": "NFC"}
    added = [AddedToken(name, special=True, normalized=False)
             for name in [*([begin] if begin else []), *special]]
    added += [AddedToken(name, special=False, normalized=False) for name in ("<tool>", "<tool>x")]
    return oracle.finish(document, added, [begin] if begin else [])


def llama_bpe():
    return made(regex(oracle.LLAMA3_PATTERN), BYTES, whole=True, begin="<|begin_of_text|>")


def qwen2():
    return made(regex(oracle.QWEN_PATTERN), BYTES, nfc=True)


def gpt_4o():
    return made(regex(oracle.O200K_PATTERN), BYTES, special=[
        f"<|{name}|>" for name in ("startoftext", "endoftext", "return", "constrain", "channel",
                                   "start", "end", "message", "call")])


def deepseek_coder():
    return made(regex("[\r\n]"), regex(r"\s?\p{L}+"), regex(r"\s?\p{P}+"),
                regex("[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(individual_digits=True), BYTES,
                begin="<｜begin｜>")


def gpt2():
    return made(GPT2)


def smollm():
    return made(pre_tokenizers.Digits(individual_digits=True), GPT2)


def falcon():
    return made(pre_tokenizers.Punctuation("contiguous"), GPT2,
                pre_tokenizers.Digits(individual_digits=False), regex("[0-9][0-9][0-9]"))


def tekken():
    return made(regex(TEKKEN), BYTES, whole=True, begin="<s>")


def deepseek_v3():
    return made(regex(r"\p{N}{1,3}"), regex("[一-龥\u3040-ゟ゠-ヿ]+"), regex(DEEPSEEK_V3), BYTES)


# name: (the document, tokenizer.ggml.model, tokenizer.ggml.pre, what begins a text)
MODELS = {
    "llama_bpe": (llama_bpe, "gpt2", "llama-bpe", "<|begin_of_text|>"),
    "qwen2": (qwen2, "gpt2", "qwen2", None),
    "gpt_4o": (gpt_4o, "gpt2", "gpt-4o", None),
    "deepseek_coder": (deepseek_coder, "gpt2", "deepseek-coder", "<｜begin｜>"),
    "gpt_2": (gpt2, "gpt2", "gpt-2", None),
    "smollm": (smollm, "gpt2", "smollm", None),
    "falcon": (falcon, "gpt2", "falcon", None),
    "tekken": (tekken, "gpt2", "tekken", "<s>"),
    "deepseek_v3": (deepseek_v3, "gpt2", "deepseek-v3", None),
    "gemma4": (lambda: oracle.gemma(400), "gemma4", None, "<bos>"),
}
PIECES = ["bytes", "gemma", "prefixed"]
TEMPLATE = "{% for m in messages %}<|im|>{{ m.content }}{% endfor %}"


def plain(document):
    """GGUF does not say that a token takes spaces with it, or is looked for in normalized texts."""
    for token in document["added_tokens"]:
        token.update(lstrip=False, rstrip=False, normalized=False)
    return document


def type_of(piece, special):
    if piece in special:
        return CONTROL if special[piece] else USER_DEFINED
    return BYTE if len(piece) == 6 and piece.startswith("<0x") and piece[5] == ">" else NORMAL


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_bpe(name, document, model, pre, begin):
    special = {token["content"]: token["special"] for token in document["added_tokens"]}
    ids = {**document["model"]["vocab"],
           **{token["content"]: token["id"] for token in document["added_tokens"]}}
    pieces = sorted(ids, key=ids.get)
    assert [ids[piece] for piece in pieces] == list(range(len(pieces)))
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([piece.encode() for piece in pieces])
    writer.add_token_types([type_of(piece, special) for piece in pieces])
    merges = document["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    if begin:
        writer.add_bos_token_id(ids[begin])
        if name == "deepseek_coder":  # the others do without saying so
            writer.add_add_bos_token(True)
    if "<|eot|>" in ids:
        writer.add_eos_token_id(ids["<|eot|>"])
    if "<unk>" in ids:
        writer.add_unk_token_id(ids["<unk>"])
    writer.add_chat_template(TEMPLATE)
    write(writer)


def golden(document):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    cases, noise = [], random.Random(2)
    texts = [case for case in oracle.CASES + oracle.GEMMA_CASES if len(case) < 100]
    texts += ["an unmerged piece", "x.\n/y(\n/"]
    texts += ["".join(noise.choices(NOISE, k=12)) for _ in range(NOISE_CASES)]
    for text in texts:
        tokenizer.encode_special_tokens = False
        named = tokenizer.encode(text).ids
        tokenizer.encode_special_tokens = True
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append({"text": text, "named": named, "ids": ids})
    return cases


def write_pieces(name):
    folder = HERE / "corpus/tokenizer" / name
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "tokenizer.model").read_bytes())
    config = json.loads((folder / "golden.json").read_text()).get("config", {})
    control = {int(id) for id, token in config.get("added_tokens_decoder", {}).items()
               if token["special"]}
    writer = gguf.GGUFWriter(OUT / f"spm_{name}.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece.piece.encode() for piece in model.pieces])
    writer.add_token_scores([piece.score for piece in model.pieces])
    writer.add_token_types([CONTROL if i in control else piece.type
                            for i, piece in enumerate(model.pieces)])
    trainer = model.trainer_spec
    for value, add in ((trainer.bos_id, writer.add_bos_token_id),
                       (trainer.eos_id, writer.add_eos_token_id),
                       (trainer.unk_id, writer.add_unk_token_id)):
        if value >= 0:
            add(value)
    writer.add_add_space_prefix(model.normalizer_spec.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(model.normalizer_spec.remove_extra_whitespaces)
    write(writer)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    goldens = {}
    for name, (make, *about) in MODELS.items():
        document = plain(make())
        write_bpe(name, document, *about)
        goldens[name] = golden(document)
    for name in PIECES:
        write_pieces(name)
    families = (json.dumps(name) + ":[\n" + ",\n".join(json.dumps(case, separators=(",", ":"))
                                                      for case in cases) + "\n]"
                for name, cases in goldens.items())
    (OUT / "golden.json").write_text("{\n" + ",\n".join(families) + "\n}\n")


if __name__ == "__main__":
    main()
