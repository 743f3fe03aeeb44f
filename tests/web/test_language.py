"""Generated text on the page, as a program asks for it: results are those of the library."""

import io
import json
import re
import zipfile
from html import unescape

import pytest
import torch

from tests.web.client import Client, RefusedError, list_changed
from tests.web.conftest import serve
from whence.demo import PROMPTS
from whence.explanation import Generation
from whence.models import load_language_model
from whence.web.service import ExplanationService

pytest.importorskip("gradio", reason="whence[web] is not installed")

NAME = "stories"


@pytest.fixture(scope="module")
def stories():
    return load_language_model()


@pytest.fixture(scope="module")
def client(service, stories):
    """A client of a page with the embedded language model beside two small ones."""
    models = {**service.models, NAME: stories}
    with serve(ExplanationService(models)) as address, Client(address) as client:
        yield client


def read_row(html):
    """The name of the first generated word, and the scores of columns that have a colour."""
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    row = json.loads(data)[0]
    return row["name"], {column: float(score) for column, _, score in row["cells"]}


def check_scores(shown, expected):
    """Scores are shown as they are, and those without a colour are nearly 0."""
    largest = max(map(abs, expected))
    assert len(shown) > 2
    assert {n for n, score in enumerate(expected) if abs(score) > 0.05 * largest} <= shown.keys()
    for column, score in shown.items():
        assert score == pytest.approx(expected[column], rel=1e-3)


def read_columns(html):
    return [unescape(t) for t in re.findall(r'data-column="\d+"[^>]*>([^<]*)</span>', html)]


def explain_next(stories, text, **request):
    """The tokens of a text, and the scores that the library gives them for what comes next."""
    inputs = stories.tokenizer([text], return_tensors="pt")
    explanation = stories.explainer.explain(inputs, **request)
    names = [token.lstrip("\u0120") for token in inputs.tokens()]
    return names, explanation.scores[0].tolist()


def test_a_word_has_the_scores_of_the_next_token(client, stories):
    html, tokens, others, difference = client.call("generate", NAME, PROMPTS[0], 2, "gae")
    (name, shown), columns = read_row(html), read_columns(html)
    names, scores = explain_next(stories, PROMPTS[0], method="gae")
    expected = [(n, s) for n, s in zip(names, scores, strict=True) if not n.startswith("<")]
    assert columns[: len(expected)] == [n for n, _ in expected]
    check_scores(shown, [score for _, score in expected])
    assert name == "dog"
    assert len(tokens["choices"]) == 2
    assert len(others["choices"]) == 8
    assert difference == ""


def test_others_are_what_the_model_holds_probable(client, stories):
    _, tokens, others, _ = client.call("generate", NAME, PROMPTS[0], 1, "random")
    logits = stories.model(**stories.tokenizer([PROMPTS[0]], return_tensors="pt")).logits[0, -1]
    chances = logits.detach().double().softmax(0)
    ranked = chances.topk(9).indices.tolist()
    assert [number for _, number in others["choices"]] == ranked[1:]
    assert tokens["choices"][0][0] == f"1: dog {100 * float(chances[ranked[0]]):.1f}%"


@pytest.mark.parametrize("other", ["bird", " bird"])
def test_one_word_rather_than_another(client, stories, other):
    (html,) = client.call("contrast", NAME, PROMPTS[0], 2, "input_x_gradient", 0, other)
    assert "dog rather than bird" in " ".join(html.split())
    _, scores = explain_next(
        stories, PROMPTS[0], target=" dog", against=" bird", method="input_x_gradient"
    )
    words = len(PROMPTS[0].replace(".", " .").split())
    check_scores(read_row(html)[1], scores[-words:])


def test_what_is_typed_is_shown_as_text(client):
    html, *_ = client.call("generate", NAME, "<script>alert(1)</script> & Tom", 3, "random")
    assert "<script>alert" not in html
    assert "&lt;" in html


def repack(content, **changed):
    """A zip file of the page with other settings."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        settings = {**json.loads(old.read("settings.json")), **changed}
        new.writestr("settings.json", json.dumps(settings))
    return out.getvalue()


def test_a_zip_file_opens_on_its_tab_and_forged_ones_are_refused(client):
    (saved,) = client.call("save_generation", NAME, PROMPTS[0], 3, "gae")
    content = client.http.get(saved["url"]).content

    def open_zip(content):
        return client.call("open", client.upload(content, "a.zip", "application/zip"))

    kinds, *values = open_zip(content)
    assert kinds["selected"] == "generation"
    model, prompt, count, method, html, *_ = list_changed(values)[1:]
    assert (model, prompt, count, method) == (NAME, PROMPTS[0], 3, "gae")
    expected = client.call("generate", model, prompt, count, method)[0]
    assert read_row(html) == read_row(expected)
    for forged in (
        {"model": "gpt"},
        {"model": ["gpt"]},
        {"count": 10**9},
        {"count": "3"},
        {"prompt": None},
        {"method": {"path": "/etc/passwd"}},
        {"format": "another"},
    ):
        with pytest.raises(RefusedError) as refused:
            open_zip(repack(content, **forged))
        assert "log" not in str(refused.value)


def test_a_zip_file_holds_a_page_and_scores(client, tmp_path):
    (saved,) = client.call("save_generation", NAME, PROMPTS[0], 3, "gae")
    with zipfile.ZipFile(io.BytesIO(client.http.get(saved["url"]).content)) as file:
        assert sorted(file.namelist()) == [
            *(f"generation.{suffix}" for suffix in ("csv", "html", "json", "safetensors")),
            "settings.json",
        ]
        file.extract("generation.safetensors", tmp_path)
    loaded = Generation.load(tmp_path / "generation.safetensors")
    assert loaded.output().strip().startswith("dog")
    assert torch.isfinite(loaded.scores).all()


@pytest.mark.parametrize(
    ("model", "prompt", "count", "method", "message"),
    [
        ("texts", "a", 2, "gae", "does not offer that language model"),
        (None, "a", 2, "gae", "does not offer that language model"),
        ([NAME], "a", 2, "gae", "does not offer that language model"),
        (NAME, "", 2, "gae", "Type a text"),
        (NAME, None, 2, "gae", "Type a text"),
        (NAME, "a " * 4000, 2, "gae", "5,000 characters"),
        (NAME, "a " * 600, 2, "gae", "512 tokens"),
        (NAME, "a " * 500, 64, "gae", "positions for 512"),
        (NAME, "a", 0, "gae", "between one and 64"),
        (NAME, "a", 65, "gae", "between one and 64"),
        (NAME, "a", 2.5, "gae", "between one and 64"),
        (NAME, "a", True, "gae", "between one and 64"),
        (NAME, "a", "2", "gae", "between one and 64"),
        (NAME, "a", None, "gae", "between one and 64"),
        (NAME, "a", 17, "rise", "takes long"),
        (NAME, "a " * 200, 2, "attention_flow", "takes long"),
        (NAME, "a", 2, "os.system", "no method"),
        (NAME, "a", 2, "vit_cx", "does not explain texts"),
        (NAME, "a", 2, ["gae"], "no method"),
        (NAME, "a", 2, None, "no method"),
    ],
)
def test_wrong_requests(client, model, prompt, count, method, message):
    with pytest.raises(RefusedError, match=message):
        client.call("generate", model, prompt, count, method)


@pytest.mark.parametrize(
    ("number", "other", "message"),
    [
        (-1, "bird", "by its number"),
        (2, "bird", "by its number"),
        ("0", "bird", "by its number"),
        (None, "bird", "by its number"),
        (0, "", "another token"),
        (0, None, "another token"),
        (0, [1], "another token"),
        (0, "dog", "both are"),
        (0, 10**6, "does not exist"),
        (0, "a hippopotamus", "tokens of this model"),
    ],
)
def test_wrong_contrasts(client, number, other, message):
    with pytest.raises(RefusedError, match=message):
        client.call("contrast", NAME, PROMPTS[0], 2, "gae", number, other)


def test_language_models_are_not_for_the_tab_of_texts(client):
    with pytest.raises(RefusedError, match="on its own tab"):
        client.call("explain_text", NAME, "a film", [], ["gae"], "")


def test_progress_is_reported(client):
    config = client.http.get("/config").json()["dependencies"]
    ids = {one["api_name"]: one["id"] for one in config}
    data = [NAME, "Tom and", 64, "random"]  # long enough for Gradio to pass it on
    request = {"data": data, "fn_index": ids["generate"], "session_hash": "two"}
    client.http.post("/gradio_api/queue/join", json=request).raise_for_status()
    steps = []
    with client.http.stream("GET", "/gradio_api/queue/data?session_hash=two") as lines:
        for line in lines.iter_lines():
            message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
            steps += message.get("progress_data") or []
            if message.get("msg") == "process_completed":
                break
    assert "Generating" in {step["desc"] for step in steps}


def test_a_named_language_model_replaces_the_embedded_one(embedded):
    from whence.models.folder import EMBEDDED_LANGUAGE_MODEL

    plain = ExplanationService.load()
    assert [name for name, one in plain.models.items() if one.generates] == ["stories (embedded)"]
    named = ExplanationService.load([str(EMBEDDED_LANGUAGE_MODEL)])
    assert [name for name, one in named.models.items() if one.generates] == ["stories"]
    assert named.list_models("text") == plain.list_models("text")
