"""Small tokenizer.json files of the kinds that checkpoints come with, trained in a second by
Hugging Face's tokenizers, and texts to try them on."""

import functools
import json
import pathlib
import random
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

WORDS = """
The harbour lay quiet in the morning, and the boats moved slowly on the water. Don't you think
she'll come? "He WON'T," said the sailor who'd mended his nets. One, two; 1, 22, 333, 4444, 2026.
int main(void) { return 0; }    x = [1, 2, 3, 10, 100]; y = {"key": "value", "list": [true]}
El niño corrió por la montaña. Der Fuß ist müde. La forêt était déjà loin. Ναι. Да, конечно.
你好，世界。日本語のテキスト 한국어 עברית العربية हिन्दी ไทย 🦊 👩‍🚀 ☕ — “quotes” … ½ ² Ⅷ ٣
"""
CASES = [
    "a", " ", "  ", "Once upon a time", " Once upon a time", "Once upon a time ", "\n", "\r\n\r\n",
    "two  spaces   three    four", "line\nbreak\n\nand\ttab", "  \n  x", "a \n b", "\u2581",
    "a\u2581b", "\u4f60\u597d\uff0c\u4e16\u754c", "caf\u00e9", "cafe\u0301",
    "\U0001f98a reads \U0001f31f", "\U0001f469\u200d\U0001f680", "<s>", "</s> <unk> <0x41>",
    "\ufffd", "\U0010ffff", "\x00 \x01\x7f", "DON'T don't Don'T we'LL I'M he'd 'S",
    "1 12 123 1234 12345 1.5 -3", "\u0663\u0664 \u2167 \u00bd", "<|begin_of_text|>", "a<|eot|>b",
    "x <|mask|>  y", "<|eot|><|eot|>", "<|eo|eot|>", "<tool>x</tool>", "a<sep>b", " <sep> ",
    "<sep><sep>", "x" * 300, " " * 300, "\n" * 300, "!" * 300, "9" * 300,
    "\u00a0\u2003\u3000\u180e\u200b\u2028x", "\u0915\u094d\u0937", "\u202eright to left",
    "e\u0301\u0302", "(a) <b> ((the water", "x. y.. z!! a?", "qqab(xy)z 12ab",
    "a(bab<x(yzz(.!.bba!(1(12<qq<bb xba", "abxy..(!<12q..!a(b<xyz((<<1.2.1",
    # what normalization form C composes, puts in order, replaces or leaves apart
    "nin\u0303o la fore\u0302t", "q\u0307\u0323 s\u0323\u0307", "\u212b \u2126 \u0374 \ufa10",
    "\u1112\u1161\u11ab\uae00\u11a8", "\u0958 \u0928\u093c", "\u0344\u0301 x\u0301\u0301",
    "\u0301a<\u03b1\u0301>b", "<\u03ac><\u03b1>", "<|e\u0301|><|\u00e9|>",
    "e<tool>\u0301", "\U0001d15e \ufb2c \u1e9b\u0323",
]

GEMMA_CASES = [
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<eos><pad>", "a<end_of_turn>",
    "<start_of_<start_of_turn>turn>", "<START_OF_TURN> <start_of_turn >", "[@BOS@]<mask><unused0>",
    "<table>\n  <td>1</td>\n</table>", "x\n\ny\n\n\n\n\nz", "\t\t\tif x:\n\t\t\t\treturn",
    "def f(x):\n    if x:\n        return 1\n", " \u2581\u2581 ", "\u2581\u2581the", "           a",
]


def train(tokenizer, vocab, **options):
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, **options)
    texts_to_learn = [WORDS, (ROOT / "LICENSE").read_text()]
    tokenizer.train_from_iterator(texts_to_learn, trainer)
    return json.loads(tokenizer.to_str())


def byte_level(vocab, pre_tokenizer):
    """A byte-level file without special tokens, as an object."""
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    return train(t, vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def finish(document, added, template=()):
    """With added tokens after the vocabulary, and a template that puts some before a text."""
    t = tokenizers.Tokenizer.from_str(json.dumps(document))
    for token in added:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    if template:
        pieces = [(name, t.token_to_id(name)) for name in template]
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single=" ".join([*template, "$A"]),
                                          special_tokens=pieces)])
    return json.loads(t.to_str())


def split(pattern, behavior, invert=False):
    return pre_tokenizers.Split(pattern, behavior, invert)


def llama3(vocab=700):
    pieces = pre_tokenizers.Sequence([
        split(Regex(LLAMA3_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    document = byte_level(vocab, pieces)
    document["model"]["ignore_merges"] = True
    # a piece that no merge makes
    document["model"]["vocab"]["\u0120unmerged"] = len(document["model"]["vocab"])
    return finish(document, [
        AddedToken("<|begin_of_text|>", special=True, normalized=False),
        AddedToken("<|eot|>", special=True, normalized=False),
        AddedToken("<|mask|>", special=True, normalized=False, lstrip=True, rstrip=True),
        AddedToken("<tool>", special=False, normalized=False),
        AddedToken("<tool>x", special=False, normalized=False),
    ], ["<|begin_of_text|>"])


def qwen(vocab=700):
    """As Qwen2's and Qwen3's: texts, and names that say so, in normalization form C."""
    document = byte_level(vocab, pre_tokenizers.Sequence([
        split(Regex(QWEN_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    document["normalizer"] = {"type": "NFC"}
    document["model"].update(continuing_subword_prefix="", end_of_word_suffix="")
    document["post_processor"] = {"type": "ByteLevel", "add_prefix_space": False,
                                  "trim_offsets": False, "use_regex": False}
    return finish(document, [
        AddedToken("<|endoftext|>", special=True, normalized=False),
        AddedToken("<|im_start|>", special=True, normalized=False),
        AddedToken("<|e\u0301|>", special=False, normalized=False),
        AddedToken("<tool>", special=False, normalized=False),
        AddedToken("<\u03b1\u0301>", special=False, normalized=True)])


def gpt_oss(vocab=700):
    document = byte_level(vocab, pre_tokenizers.Sequence([
        split(Regex(O200K_PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    return finish(document, [
        AddedToken(f"<|{name}|>", special=True, normalized=False)
        for name in ("startoftext", "endoftext", "return", "constrain", "channel", "start", "end",
                     "message", "call")])


def gpt2(vocab=600):
    document = byte_level(vocab, pre_tokenizers.ByteLevel(add_prefix_space=True))
    document["model"]["merges"] = [" ".join(m) for m in document["model"]["merges"]]  # as of old
    return finish(document, [AddedToken("<|endoftext|>", special=True, normalized=False),
                             AddedToken("<sep>", special=False, normalized=True),
                             AddedToken("  ", special=False, normalized=False)])


def deepseek(vocab=600):
    return finish(byte_level(vocab, pre_tokenizers.Sequence([
        split(Regex("[\r\n]"), "isolated"), split(Regex(r"\s?\p{L}+"), "isolated"),
        split(Regex(r"\s?\p{P}+"), "isolated"), split(Regex("[一-龥ࠀ-一가-퟿]+"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
        [AddedToken("<｜begin｜>", special=True, normalized=True)], ["<｜begin｜>"])


def cut(vocab, *steps):
    """Pieces that reach over every cut that these steps make."""
    noise = random.Random(1)
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(("".join(noise.choices("abxyz(<.!q 12", k=9)) for _ in range(2000)),
                          trainer)
    t.pre_tokenizer = pre_tokenizers.Sequence([*steps, t.pre_tokenizer])
    return json.loads(t.to_str())


def behaviors(vocab=500):
    """Every behaviour of a split, one after the other."""
    return cut(vocab, split("ab", "isolated"), split(Regex("[xyz]"), "merged_with_previous"),
               split(Regex("[(<]"), "merged_with_next"), split(Regex("[.!]"), "contiguous"),
               split(Regex("q+"), "removed"),
               split(Regex(r"\w+|[^\w\s]+|\s+"), "removed", invert=True),
               split(Regex("x*"), "isolated"), pre_tokenizers.Punctuation("merged_with_previous"),
               pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.WhitespaceSplit())


def split_by(behavior, vocab=500):
    return cut(vocab, split(Regex("[ab.]"), behavior))


def spm_like(vocab, byte_fallback=True):
    """Characters with U+2581 for spaces, as SentencePiece's models are converted."""
    t = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    document = train(t, vocab, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=80)
    model = document["model"]
    words = [piece for piece in model["vocab"] if piece not in ("<unk>", "<s>", "</s>")]
    pieces = ["<unk>", "<s>", "</s>"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    model["vocab"] = {piece: i for i, piece in enumerate([*pieces, *words])}
    model["byte_fallback"] = byte_fallback
    document["pre_tokenizer"] = None
    document["decoder"] = json.loads(decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)]).__getstate__())
    return document


def llama2(vocab=500, normalized=False):
    document = spm_like(vocab)
    document["normalizer"] = json.loads(normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]).__getstate__())
    return finish({**document, "added_tokens": []}, [
        *(AddedToken(name, special=True, normalized=normalized)
          for name in ("<unk>", "<s>", "</s>")),
        AddedToken("<sep>", special=False, normalized=True)], ["<s>"])


def metaspace(vocab=400):
    """As Mistral's: no normalizer, a mark before the first word; no bytes, unknown is fused."""
    document = spm_like(vocab, byte_fallback=False)
    document["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581",
                                 "prepend_scheme": "first", "split": False}
    return finish({**document, "added_tokens": []}, [
        AddedToken(name, special=True, normalized=False) for name in ("<unk>", "<s>", "</s>")],
        ["<s>"])


def gemma(vocab=600):
    """As Gemma's, which were SentencePiece's: what its users defined there (turns, tags, runs of
    spaces and lines) are added tokens, and few of them special; no space before a text; a tab has
    taken the place of its byte."""
    document = spm_like(vocab)
    model = document["model"]
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    runs = [c * n for c, first, last in (("\n", 1, 4), ("\u2581", 2, 8), ("\t", 2, 3))
            for n in range(first, last + 1)]
    plain = ["<mask>", "[@BOS@]", "<unused0>", *runs, "<table>", "</table>", "<td>", "</td>"]
    words = [piece for piece in model["vocab"] if piece not in ("<unk>", "<s>", "</s>", *runs)]
    words[words.index("<0x09>")] = "\t"
    model["vocab"] = {piece: i for i, piece in enumerate([*control, *plain, *words])}
    halves = [[run[:i], run[i:]] for run in runs for i in range(1, len(run))]
    model["merges"][:0] = sorted(halves, key=lambda half: [len(part) for part in half],
                                 reverse=True)
    document["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    document["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "},
                                 "behavior": "MergedWithPrevious", "invert": False}
    document["decoder"]["decoders"].pop()
    document = finish({**document, "added_tokens": []}, [
        AddedToken(name, special=name in control, normalized=False) for name in control + plain],
        ["<bos>"])
    document["post_processor"] = document["post_processor"]["processors"][1]
    return document


FAMILIES = {
    "llama3": llama3, "qwen": qwen, "gpt_oss": gpt_oss, "gpt2": gpt2, "deepseek": deepseek,
    "behaviors": behaviors,
    "llama2": llama2, "llama2_old": functools.partial(llama2, normalized=True),
    "metaspace": metaspace, "gemma": gemma,
}
SPLITS = {f"split_{name}": functools.partial(split_by, name) for name in (
    "isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous")}

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFG xyz", "  \t\n\r", "0123456789",
    ".,;:!?()[]{}<>|'\"`-_/\\@#", "éüñßøåçÅŁ", "\u0301\u0302\u0308\u20dd", "αβγδ жзик",
    "你好世界日本語한국어", "🦊👩🚀\u200d☕\ufe0f", "عربي עברית हिन्दी", "\u2581",
    "\u00a0\u1680\u2003\u2028\u3000\u180e\u200b\ufeff\x85\x0b\x0c\x1c",
    "\x00\x01\x7f\x80\ufffd\uffff", "\u0663\u06f5\u2167\u00bd\u00b2\u2460",
]
PARTS = [
    "don't", "I'LL", "<s>", "</s>", "<unk>", "<|eot|>", "<|begin_of_text|>", " <|mask|> ", "<tool>",
    "<tool>x", "<sep>", "<\u03ac>", "<\u03b1\u0301>", "<|e\u0301|>", "<0x0A>", "▁the", "the water",
    "unmerged", " unmerged", "<|start|>", "<|channel|>", "McDonald's HTTPServer's",
    "http://x.y/z?a=1", "<start_of_turn>", "<td>", "\n\n\n",
    "a(bx(yab<z..!q1", "12(<xx!!.a b",
    "    return 0;\n", "\r\n\r\n", "2026-11-22", "1,234.56", "qq", "ab", "xy(z)", "▁▁",
]
# Characters of Unicode 3.2, on whose classes all versions agree.
ANY = [c for c in [*range(0x20, 0x30000, 7), 0xe000, 0x10fffd]
       if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")]


def random_text(noise):
    parts = []
    for _ in range(noise.randrange(1, 12)):
        kind = noise.randrange(10)
        if kind == 0:
            parts.append(noise.choice(PARTS))
        elif kind == 1:
            parts.append(noise.choice(noise.choice(ALPHABETS)) * noise.randrange(1, 40))
        elif kind == 2:
            parts.append(chr(noise.choice(ANY)))
        elif kind < 5:
            parts.append(noise.choice(WORDS.split()))
        else:
            alphabet = noise.choice(ALPHABETS)
            parts.append("".join(noise.choice(alphabet) for _ in range(noise.randrange(1, 9))))
        parts.append(noise.choice(["", "", " "]))
    return "".join(parts)


def texts(count, seed=1):
    noise = random.Random(seed)
    return [*CASES, *(random_text(noise) for _ in range(count))]
