"""The page of a result: stored scores, drawn inputs, and what is missing by now."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.distributed.results import explain_many
from tests.fixtures import HOSTILE
from tests.html_pages import list_entries, parse_html
from tests.saved import make_photo
from whence.distributed import ResultFolder

pytest.importorskip("pyarrow")


@pytest.fixture
def stored(here):
    return explain_many(["photos"], here / "stored")


def read_page(here):
    text = (here / "report.html").read_text(encoding="utf-8")
    return text, parse_html(text)


def read_entries(root):
    """Class, probability, faithfulness and the pixels of the map, by the name of the input."""
    entries = {}
    for one in list_entries(root):
        facts = {key.removeprefix("data-"): value for key, value in one.attributes.items()}
        maps = [image.attributes["src"].partition(",")[2] for image in one.find_all("img")]
        opened = [Image.open(io.BytesIO(base64.b64decode(content))) for content in maps]
        pixels = [np.asarray(image.convert("RGBA"), float) for image in opened]
        entries[one.find_all("bdi", "name")[0].text] = (facts, pixels)
    return entries


def test_the_page_shows_what_explaining_again_would(stored, here, report, make_page):
    direct = parse_html(make_page("photos", "--methods", "tiba", code=1))
    result = report("stored", "--force", code=1)
    assert "3 of 3 explained inputs → report.html" in result.stdout
    assert "c.png: The photo is damaged" in result.stderr
    text, root = read_page(here)
    shown, wanted = read_entries(root), read_entries(direct)
    assert shown.keys() == wanted.keys()
    for name, (facts, maps) in shown.items():
        others, other_maps = wanted[name]
        assert facts["class"] == others["class"]
        assert len(maps) == len(other_maps) == (name != "c.png")
        for one, other in zip(maps, other_maps, strict=True):
            assert np.abs(one - other).max() <= 4
            assert float(facts["probability"]) == pytest.approx(
                float(others["probability"]), abs=1e-5
            )
            score, again = float(facts["faithfulness"]), float(others["faithfulness"])
            assert score == pytest.approx(again, abs=0.2)
    assert "All 3 explained inputs of a run" in text
    assert "1 input could not be explained" in text
    assert str(here) not in text
    assert stored.description.fingerprint in text


def test_a_few_are_drawn(stored, here, report):
    report("stored", "--limit", 1, "--no-faithfulness", code=1)
    text, root = read_page(here)
    assert len(list_entries(root)) == 2  # and the one that failed
    assert "1 of 3 explained inputs, drawn at random" in text
    table = root.find_all("table")[0]
    counts = [[cell.text for cell in row.find_all("td")] for row in table.find_all("tr")[1:]]
    assert sum(int(inputs) for inputs, *_ in counts) == 3


def test_inputs_that_are_gone_or_changed(stored, here, report):
    (here / "photos" / "a.png").unlink()
    make_photo(seed=77).save(here / "photos" / "b.jpg")
    report("stored", code=1)
    _, root = read_page(here)
    notes = {
        one.find_all("bdi", "name")[0].text: [note.text for note in one.find_all("ul", "notes")]
        for one in list_entries(root)
    }
    assert "could not be read again" in notes["a.png"][0]
    assert "changed since it was explained" in notes["b.jpg"][0]
    assert notes[HOSTILE] == []
    maps = [one for one in root.find_all("img") if one.attributes["alt"].startswith("Map of")]
    assert len(maps) == 3


def test_without_the_model_maps_lie_beside_photos(stored, here, report):
    run = here / "stored" / "_whence" / "run.json"
    content = json.loads(run.read_text())
    content["settings"]["explain"]["model"] = "/gone/vit"
    run.write_text(json.dumps(content))
    result = report("stored", code=1)
    assert "the model is missing" in result.stderr
    text, root = read_page(here)
    assert "The model could not be loaded" in text
    assert "/gone" not in text
    apart = [one for one in list_entries(root) if one.attributes.get("class") == "apart"]
    assert len(apart) == 3
    assert all(one.attributes["data-faithfulness"] == "" for one in apart)


def test_a_model_with_other_weights_is_refused(stored, here, report, cropping_vit, tmp_path):
    import torch
    from transformers import ViTForImageClassification

    folder = shutil.copytree(cropping_vit.name, tmp_path / "other")
    model = ViTForImageClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias.add_(1)
    model.save_pretrained(folder)
    result = report("stored", "--model", folder, code=2)
    assert "has other weights than the one that made" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["stored", "photos"], "name it alone"),
        (["stored", "--top", "2"], "--top is for inputs that are explained now"),
        (["stored", "--methods", "gae"], "--methods is for inputs that are explained now"),
        (["stored", "--rules", "paper"], "--rules is for inputs that are explained now"),
        (["https://some.where/x"], "is an address; save what is there"),
        (["photos", "--limit", "3"], "--limit is for folders of results"),
        (["stored", "--out", "photos"], "must end in .html|is a folder"),
        (["stored", "--device", "nowhere"], "There is no device 'nowhere'"),
        (["s3:/wrong", "--limit", "3"], "--limit is for"),
    ],
)
def test_wrong_requests(stored, report, arguments, sentence):
    result = report(*arguments, code=2)
    assert re.search(sentence, result.stderr)


def test_a_result_of_texts_has_their_words(here, report):
    (here / "texts").mkdir()
    (here / "texts" / "one.txt").write_text("The film was wonderful, and very good!")
    explain_many(["texts"], here / "stored")
    report("stored")
    _, root = read_page(here)
    (entry,) = list_entries(root)
    (words,) = entry.find_all("p", "words")
    assert words.text.replace(" ", "") == "Thefilmwaswonderful,andverygood!"
    (here / "texts" / "one.txt").write_text("It was bad.")
    report("stored", "--force")
    text, _ = read_page(here)
    assert "the text has changed since it was explained" in text


def test_nothing_that_was_explained(here, report, image_model):
    folder = explain_many(["photos"], here / "stored")
    for part in folder.list_parts():
        (here / "stored" / part).unlink()
    assert "holds no input that was explained" in report("stored", code=2).stderr
    assert ResultFolder(here / "stored").run


def test_a_table_that_is_gone_is_not_named(here, report):
    texts = [json.dumps({"id": n, "text": f"the film was {n}"}) for n in ("good", "bad")]
    (here / "secret.jsonl").write_text("\n".join(texts))
    explain_many(["secret.jsonl"], here / "stored")
    (here / "secret.jsonl").write_text(texts[0])
    report("stored")
    assert "it is not in the table any more" in read_page(here)[0]
    (here / "secret.jsonl").unlink()
    report("stored", "--force")
    text, root = read_page(here)
    assert "its table is not there, or is damaged" in text
    assert str(here) not in text
    assert "secret" not in text
    assert [p.text for p in root.find_all("p", "words")] == [
        "the film was bad",
        "the film was good",
    ]
