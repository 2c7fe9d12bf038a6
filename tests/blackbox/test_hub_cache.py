"""Models in Hugging Face's cache: what huggingface_hub finds there without a network is served."""

import shutil

import huggingface_hub
import pytest

import harness

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-org/Tiny.Model-1_b"


@pytest.fixture
def cache(tmp_path):
    """Files are links to blobs, as huggingface_hub makes them."""
    model = tmp_path / "hub" / f"models--{NAME.replace('/', '--')}"
    snapshot = model / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    for i, file in enumerate(sorted((harness.ROOT / "tests/golden/tied_gqa2_f32").iterdir())):
        shutil.copy(file, model / "blobs" / str(i))
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    found = huggingface_hub.snapshot_download(NAME, cache_dir=tmp_path / "hub",
                                              local_files_only=True)
    assert found == str(snapshot)
    return tmp_path / "hub"


def places(cache):
    """What says where the cache is, each of which goes before those behind it."""
    home = cache.parent / "home"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "hub").symlink_to(cache)
    (home / "huggingface").mkdir()
    (home / "huggingface" / "hub").symlink_to(cache)
    return [("HF_HUB_CACHE", cache), ("HF_HOME", cache.parent), ("XDG_CACHE_HOME", home),
            ("HOME", home)]


def plan(name, **variables):
    """With these alone: an empty variable says nothing."""
    names = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")
    return harness.run("plan", name, "-tp", 2, variables={**dict.fromkeys(names, ""), **variables})


def test_where_the_cache_is(cache):
    order = places(cache)
    for i, (variable, value) in enumerate(order):
        later = {other: "/nonexistent" for other, _ in order[i + 1:]}
        done = plan(NAME, **{variable: str(value)}, **later)
        assert done.returncode == 0, done.stderr
        assert f"{NAME} is " in done.stderr and COMMIT in done.stderr
        if i > 0:
            earlier = {order[i - 1][0]: "/nonexistent"}
            assert plan(NAME, **{variable: str(value)}, **earlier).returncode == 3


def test_it_is_served_by_its_name(cache, serve, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    server = serve(NAME, "-tp", 2, "--skip-tokenizer-init")
    (model,) = server.get("/v1/models").json()["data"]
    assert model["id"] == NAME
    answer = server.post("/v1/completions", {"model": NAME, "prompt": [3, 4], "max_tokens": 2})
    assert answer.status == 200


@pytest.mark.parametrize("name", ["some-org/Other", "some-org/../x", ".hidden/x", "a/b/c",
                                  f"{NAME}/", "some-org/"])
def test_what_is_not_there(cache, name):
    done = plan(name, HF_HUB_CACHE=str(cache))
    assert done.returncode == 3 and "no such model directory" in done.stderr
    if name == "some-org/Other":
        assert "hf download some-org/Other" in done.stderr


def test_a_broken_cache(cache):
    """A commit that leads elsewhere, or nowhere, is not followed."""
    refs = cache / f"models--{NAME.replace('/', '--')}" / "refs" / "main"
    for text in "", "../snapshots/" + COMMIT, "f" * 40, COMMIT + "x" * 100:
        refs.write_text(text)
        assert plan(NAME, HF_HUB_CACHE=str(cache)).returncode == 3
    refs.unlink()
    assert plan(NAME, HF_HUB_CACHE=str(cache)).returncode == 3
