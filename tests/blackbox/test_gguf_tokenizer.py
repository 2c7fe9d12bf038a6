"""Tokenizers of GGUF files, as others read what is written of them (tests/test_gguf_tokenizer.c has
how this program does): Hugging Face's tokenizers, against what they made of the texts from the
original (tests/make_gguf_tokenizers.py)."""

import json
import subprocess

import pytest
import tokenizers

import harness
from test_gguf import real_value, whole_values, with_keys

PROGRAM = harness.BINARY.parent / "tests" / "write_tokenizer"
CORPUS = harness.ROOT / "tests/corpus/gguf_tokenizers"
GOLDENS = json.loads((CORPUS / "golden.json").read_text())


def write(name, directory):
    subprocess.run([PROGRAM, CORPUS / f"{name}.gguf", directory], check=True,
                   timeout=60 * harness.PATIENCE)


@pytest.mark.parametrize("name", GOLDENS)
def test_hugging_face_reads_it(tmp_path, name):
    write(name, tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "model/tokenizer.json"))
    for case in GOLDENS[name]:
        assert tokenizer.encode(case["text"]).ids == case["named"], case["text"]
        tokenizer.encode_special_tokens = True
        ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        assert ids == case["ids"], case["text"]


@pytest.mark.parametrize("name", ["llama_bpe", "gemma4", "spm_gemma"])
def test_settings_are_json(tmp_path, name):
    """Where tokens have characters that JSON escapes, too."""
    write(name, tmp_path / "model")
    config = json.loads((tmp_path / "model/tokenizer_config.json").read_text())
    generation = json.loads((tmp_path / "model/generation_config.json").read_text())
    assert config["add_bos_token"] is True
    if name == "spm_gemma":
        added = config["added_tokens_decoder"]
        assert added["4"]["content"] == "<start_of_turn>" and added["4"]["special"]
        assert added["10"]["content"] == "<table>" and not added["10"]["special"]
        assert 5 in generation["eos_token_id"]  # <end_of_turn>


SUPPRESSED = "tokenizer.ggml.suppress_tokens"


def test_suppressed_tokens(tmp_path):
    """Which Gemma 4's unified models have."""
    path = with_keys(tmp_path, "gemma4", (SUPPRESSED, whole_values(7, 300)), folder=CORPUS)
    write(path.with_suffix(""), tmp_path / "model")
    generation = json.loads((tmp_path / "model/generation_config.json").read_text())
    assert generation["suppress_tokens"] == [7, 300]


@pytest.mark.parametrize("value", [whole_values(7, 300_000), whole_values(-1), whole_values(),
                                   real_value(7)], ids=range(4))
def test_suppressed_tokens_that_are_none(tmp_path, value):
    path = with_keys(tmp_path, "gemma4", (SUPPRESSED, value), folder=CORPUS)
    done = subprocess.run([PROGRAM, path, tmp_path / "model"], timeout=60 * harness.PATIENCE,
                          capture_output=True, text=True)
    assert done.returncode != 0
    assert f"{path}: {SUPPRESSED}: an array of ids" in done.stderr
