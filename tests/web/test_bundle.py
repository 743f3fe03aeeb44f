"""Bundles are saved and opened again; forged or damaged ones are refused."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load as load_tensors
from safetensors.torch import save as to_bytes

from tests.web.client import make_png
from whence import WhenceError
from whence.web.bundle import Bundle, pack_bundle, unpack_bundle
from whence.web.service import Choice, get_explanations
from whence.web.validation import check_text, decode_photo


@pytest.fixture(scope="module")
def photo_bundle(service):
    photo = decode_photo(make_png())
    prediction = service.predict("photos", photo)
    results = service.explain(prediction, Choice((2, 0)), ["tiba", "random"])
    return Bundle("photos", photo, prediction.photo.crop, get_explanations(results))


@pytest.fixture(scope="module")
def text_bundle(service):
    text = check_text("the film is not very good")
    results = service.explain(service.predict("texts", text), Choice((0,)), ["gae"])
    return Bundle("texts", text, None, get_explanations(results))


def change_member(content, name, change):
    """The bundle with one of its files changed; None removes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            data = change(data) if member == name else data
            if data is not None:
                new.writestr(member, data)
    return out.getvalue()


def set_settings(**other):
    return lambda data: json.dumps({**json.loads(data), **other}).encode()


def set_tensors(**other):
    """The explanation with other numbers, and the header that it had."""

    def change(data):
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        return to_bytes({**load_tensors(data), **other}, metadata)

    return change


def set_facts(**other):
    def change(data):
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])["__metadata__"]
        facts = {**json.loads(header["explanation"]), **other}
        return to_bytes(load_tensors(data), {**header, "explanation": json.dumps(facts)})

    return change


def test_a_photo_comes_back(photo_bundle):
    bundle = unpack_bundle(pack_bundle(photo_bundle))
    assert bundle.page_input.content == photo_bundle.page_input.content
    assert bundle.photo.tobytes() == photo_bundle.photo.tobytes()
    assert (bundle.model, bundle.classes) == ("photos", [2, 0])
    for name, explanation in photo_bundle.explanations.items():
        assert torch.equal(bundle.explanations[name].scores, explanation.scores)


@pytest.mark.slow
def test_the_largest_bundle_can_be_opened_again(service):
    noise = np.random.default_rng(0).integers(0, 256, (1800, 1800, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    photo = decode_photo(file.getvalue())
    prediction = service.predict("photos", photo)
    names = ["tiba", "random", "gae", "whence", "rollout", "raw_attention"]
    results = service.explain(prediction, Choice((0, 1, 2)), names)
    bundle = Bundle("photos", photo, prediction.photo.crop, get_explanations(results))
    assert list(unpack_bundle(pack_bundle(bundle)).explanations) == names


def test_a_text_comes_back(text_bundle):
    bundle = unpack_bundle(pack_bundle(text_bundle))
    assert bundle.page_input.text == text_bundle.page_input.text
    assert bundle.explanations["gae"].words() == text_bundle.explanations["gae"].words()


def test_explanations_are_files_of_the_library(photo_bundle, tmp_path):
    from whence import Explanation

    with zipfile.ZipFile(io.BytesIO(pack_bundle(photo_bundle))) as file:
        file.extract("tiba.safetensors", tmp_path)
    loaded = Explanation.load(tmp_path / "tiba.safetensors")
    assert loaded.target_names == [["crane", "cat"]]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("settings.json", lambda _: None),
        ("settings.json", lambda _: b"{"),
        ("settings.json", lambda _: b"[" * 50_000),
        ("settings.json", lambda _: b" " * 1_000_000),
        ("settings.json", set_settings(format="other")),
        ("settings.json", set_settings(methods=[])),
        ("settings.json", set_settings(methods=["random"] * 7)),
        ("settings.json", set_settings(methods=["../../etc/passwd"])),
        ("settings.json", set_settings(methods=[["tiba"]])),
        ("settings.json", set_settings(methods=["gae"])),
        ("settings.json", set_settings(input="/etc/passwd")),
        ("settings.json", set_settings(input="tiba.safetensors")),
        ("input.png", lambda _: None),
        ("input.png", lambda _: b"\0" * 100),
        ("shown.png", lambda _: b"\0" * 100),
        ("tiba.safetensors", lambda _: None),
        ("tiba.safetensors", lambda data: data[:100]),
        ("tiba.safetensors", lambda _: b"\x80\x04K\x01."),  # a pickle
        ("tiba.safetensors", lambda _: b"\0" * 5_000_000),
        ("tiba.safetensors", set_tensors(scores=torch.zeros(1, 2, 15))),
        ("tiba.safetensors", set_tensors(scores=torch.zeros(2, 16))),
        ("tiba.safetensors", set_tensors(scores=torch.full((1, 2, 16), torch.nan))),
        ("tiba.safetensors", set_tensors(target=torch.tensor([[0, 1]]))),
        ("tiba.safetensors", set_tensors(target=torch.tensor([[2, 99]]))),
        ("tiba.safetensors", set_tensors(target=torch.tensor([[2.0, 0.0]]))),
        ("tiba.safetensors", set_tensors(logits=torch.zeros(3))),
        ("tiba.safetensors", set_facts(grid=[16])),
        ("tiba.safetensors", set_facts(grid=[-4, -4])),
        ("tiba.safetensors", set_facts(grid=["4", "4"])),
        ("tiba.safetensors", set_facts(grid=None)),
        ("tiba.safetensors", set_facts(method="random")),
        ("tiba.safetensors", set_facts(target_names=[["crane"]])),
        ("tiba.safetensors", set_facts(target_names=[["crane", 7]])),
        ("tiba.safetensors", set_facts(target_names=7)),
    ],
)
def test_forged_bundles_of_photos_are_refused(photo_bundle, name, change):
    with pytest.raises(WhenceError):
        unpack_bundle(change_member(pack_bundle(photo_bundle), name, change))


def test_a_forged_map_of_very_many_patches_is_refused(photo_bundle):
    def change(data):
        scores = torch.zeros(1, 2, 10**6, dtype=torch.int8)
        return set_facts(grid=[1000, 1000])(set_tensors(scores=scores)(data))

    with pytest.raises(WhenceError, match="does not fit its input"):
        unpack_bundle(change_member(pack_bundle(photo_bundle), "tiba.safetensors", change))


def make_tokens(count):
    return {"strings": [["a"] * count], "words": [[0] * count], "texts": [["a"]]}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("input.txt", lambda _: b"\xff\xff"),
        ("input.txt", lambda _: b"a" * 6_000),
        ("gae.safetensors", set_facts(tokens=None)),
        ("gae.safetensors", set_facts(tokens=make_tokens(3))),
        ("gae.safetensors", set_facts(tokens=make_tokens(8) | {"texts": [[]], "words": [[9] * 8]})),
        ("gae.safetensors", set_facts(tokens=make_tokens(8) | {"words": [["a"] * 8]})),
        ("gae.safetensors", set_facts(tokens=make_tokens(8) | {"strings": [[7] * 8]})),
        ("gae.safetensors", set_facts(tokens={"strings": 7})),
    ],
)
def test_forged_bundles_of_texts_are_refused(text_bundle, name, change):
    with pytest.raises(WhenceError):
        unpack_bundle(change_member(pack_bundle(text_bundle), name, change))


def test_other_files_are_refused(photo_bundle):
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as file:
        for n in range(1000):
            file.writestr(str(n), b"")
    for content in (
        b"",
        b"PK\x03\x04",
        pack_bundle(photo_bundle)[:-50],
        many.getvalue(),
        b"\0" * 30_000_000,
    ):
        with pytest.raises(WhenceError):
            unpack_bundle(content)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unlimited_compression_is_refused(packing, monkeypatch):
    """For these, zipfile unpacks a thousand bytes to gigabytes, however few are asked for."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as file:
        file.writestr("settings.json", b"0" * 1000)

    def never(*_):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr("zipfile.ZipExtFile.read", never)
    with pytest.raises(WhenceError, match="packed in a way"):
        unpack_bundle(out.getvalue())


def test_a_bundle_with_damaged_bytes_is_refused(photo_bundle):
    """Damage anywhere is refused in a sentence, unless it changes nothing that is shown."""
    content = pack_bundle(photo_bundle)
    refused = 0
    for at in range(0, len(content), len(content) // 200):
        damaged = content[:at] + bytes(255 - one for one in content[at : at + 16])
        try:
            unpack_bundle(damaged + content[at + 16 :])
        except WhenceError:
            refused += 1
    assert refused > 20
