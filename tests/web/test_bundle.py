"""Bundles: what was saved comes back, and what was made up does not."""

import io
import json
import zipfile

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as to_bytes

from tests.web.client import png
from whence import WhenceError
from whence.web.bundle import Bundle, pack_bundle, unpack_bundle
from whence.web.validation import check_text, decode_photo


@pytest.fixture(scope="module")
def of_photo(service):
    what = decode_photo(png())
    answers = service.explain("photos", what, [2, 0], ["tiba", "random"])
    photo = service.predict("photos", what).photo
    return Bundle("photos", what, photo, {a.method: a.explanation for a in answers})


@pytest.fixture(scope="module")
def of_text(service):
    what = check_text("the film is not very good")
    answers = service.explain("texts", what, [0], ["gae"])
    return Bundle("texts", what, None, {a.method: a.explanation for a in answers})


def changed(content, name, change):
    """The bundle with one of its files changed; None removes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            data = old.read(member)
            data = change(data) if member == name else data
            if data is not None:
                new.writestr(member, data)
    return out.getvalue()


def settings(**other):
    return lambda data: json.dumps({**json.loads(data), **other}).encode()


def tensors(**other):
    """The explanation with other numbers, and the header that it had."""

    def change(data):
        length = int.from_bytes(data[:8], "little")
        facts = json.loads(data[8 : 8 + length])["__metadata__"]
        return to_bytes({**load_tensors(data), **other}, facts)

    return change


def facts(**other):
    def change(data):
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])["__metadata__"]
        told = {**json.loads(header["explanation"]), **other}
        return to_bytes(load_tensors(data), {**header, "explanation": json.dumps(told)})

    return change


def test_a_photo_comes_back(of_photo):
    found = unpack_bundle(pack_bundle(of_photo))
    assert found.page_input.content == of_photo.page_input.content
    assert found.photo.tobytes() == of_photo.photo.tobytes()
    assert (found.model, found.classes) == ("photos", [2, 0])
    for name, explanation in of_photo.explanations.items():
        assert torch.equal(found.explanations[name].scores, explanation.scores)


def test_a_text_comes_back(of_text):
    found = unpack_bundle(pack_bundle(of_text))
    assert found.page_input.text == of_text.page_input.text
    assert found.explanations["gae"].words() == of_text.explanations["gae"].words()


def test_explanations_are_files_of_the_library(of_photo, tmp_path):
    from whence import Explanation

    with zipfile.ZipFile(io.BytesIO(pack_bundle(of_photo))) as file:
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
        ("settings.json", settings(format="other")),
        ("settings.json", settings(methods=[])),
        ("settings.json", settings(methods=["random"] * 7)),
        ("settings.json", settings(methods=["../../etc/passwd"])),
        ("settings.json", settings(methods=[["tiba"]])),
        ("settings.json", settings(methods=["gae"])),
        ("settings.json", settings(input="/etc/passwd")),
        ("settings.json", settings(input="tiba.safetensors")),
        ("input.png", lambda _: None),
        ("input.png", lambda _: b"\0" * 100),
        ("shown.png", lambda _: b"\0" * 100),
        ("tiba.safetensors", lambda _: None),
        ("tiba.safetensors", lambda data: data[:100]),
        ("tiba.safetensors", lambda _: b"\x80\x04K\x01."),  # a pickle
        ("tiba.safetensors", lambda _: b"\0" * 5_000_000),
        ("tiba.safetensors", tensors(scores=torch.zeros(1, 2, 15))),
        ("tiba.safetensors", tensors(scores=torch.zeros(2, 16))),
        ("tiba.safetensors", tensors(scores=torch.full((1, 2, 16), torch.nan))),
        ("tiba.safetensors", tensors(target=torch.tensor([[0, 1]]))),
        ("tiba.safetensors", tensors(target=torch.tensor([[2, 99]]))),
        ("tiba.safetensors", tensors(target=torch.tensor([[2.0, 0.0]]))),
        ("tiba.safetensors", tensors(logits=torch.zeros(3))),
        ("tiba.safetensors", facts(grid=[16])),
        ("tiba.safetensors", facts(grid=[-4, -4])),
        ("tiba.safetensors", facts(grid=["4", "4"])),
        ("tiba.safetensors", facts(grid=None)),
        ("tiba.safetensors", facts(method="random")),
        ("tiba.safetensors", facts(target_names=[["crane"]])),
        ("tiba.safetensors", facts(target_names=[["crane", 7]])),
        ("tiba.safetensors", facts(target_names=7)),
    ],
)
def test_bundles_of_photos_that_were_made_up(of_photo, name, change):
    with pytest.raises(WhenceError):
        unpack_bundle(changed(pack_bundle(of_photo), name, change))


def strings(count):
    return {"strings": [["a"] * count], "words": [[0] * count], "texts": [["a"]]}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("input.txt", lambda _: b"\xff\xff"),
        ("input.txt", lambda _: b"a" * 6_000),
        ("gae.safetensors", facts(tokens=None)),
        ("gae.safetensors", facts(tokens=strings(3))),
        ("gae.safetensors", facts(tokens=strings(8) | {"texts": [[]], "words": [[9] * 8]})),
        ("gae.safetensors", facts(tokens=strings(8) | {"words": [["a"] * 8]})),
        ("gae.safetensors", facts(tokens=strings(8) | {"strings": [[7] * 8]})),
        ("gae.safetensors", facts(tokens={"strings": 7})),
    ],
)
def test_bundles_of_texts_that_were_made_up(of_text, name, change):
    with pytest.raises(WhenceError):
        unpack_bundle(changed(pack_bundle(of_text), name, change))


def test_files_that_are_no_bundles(of_photo):
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as file:
        for n in range(1000):
            file.writestr(str(n), b"")
    for content in (
        b"",
        b"PK\x03\x04",
        pack_bundle(of_photo)[:-50],
        many.getvalue(),
        b"\0" * 30_000_000,
    ):
        with pytest.raises(WhenceError):
            unpack_bundle(content)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nothing_is_unpacked_that_cannot_be_bounded(packing, monkeypatch):
    """For these, zipfile unpacks a thousand bytes to gigabytes, however few are asked for."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as file:
        file.writestr("settings.json", b"0" * 1000)

    def never(*_):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr("zipfile.ZipExtFile.read", never)
    with pytest.raises(WhenceError, match="packed in a way"):
        unpack_bundle(out.getvalue())


def test_a_bundle_that_was_damaged_on_its_way(of_photo):
    """Whichever byte of it: a sentence, or nothing that matters to what is shown."""
    content = pack_bundle(of_photo)
    told = 0
    for at in range(0, len(content), len(content) // 200):
        damaged = content[:at] + bytes(255 - one for one in content[at : at + 16])
        try:
            unpack_bundle(damaged + content[at + 16 :])
        except WhenceError:
            told += 1
    assert told > 20


def test_names_in_a_bundle_are_shown_as_text(of_photo):
    from whence.web import views
    from whence.web.service import MethodResult

    evil = facts(target_names=[["<script>alert(1)</script>", "cat"]])
    found = unpack_bundle(changed(pack_bundle(of_photo), "tiba.safetensors", evil))
    answers = [MethodResult(name, one) for name, one in found.explanations.items()]
    assert "<script" not in views.render_results(answers, found.photo)
