"""Generate text after a prompt with images, explain every word of it, and write the results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from whence._util.files import check_is_file, check_writable, stage_files
from whence.errors import WhenceError, WhenceWarning
from whence.explainer import Explainer
from whence.explanation import Generation
from whence.inputs.images import read_image
from whence.inputs.sources import Source
from whence.inputs.texts import validate_text
from whence.models.vision_language import load_vision_language_model
from whence.pipeline.entries import OutputSettings
from whence.pipeline.generate import GenerateSettings, GenerationResult, TokenCounter
from whence.pipeline.results import check_absent, choose_names
from whence.render import format_generation_page
from whence.render.files import format_json

_BOTH = ["input_ids", "pixel_values"]


def generate_after_images(
    settings: GenerateSettings,
    output: OutputSettings,
    source: Source,
    images: Sequence[Path],
    advance: Callable[[int], None] = lambda _: None,
) -> GenerationResult:
    """Generate text after images and a prompt, and write a figure, a page and data.

    The figure has a map of the images for each generated token, and the words below. The page and
    the scores are of the words alone; the safetensors file has everything.

    Args:
        settings: The model and what to explain.
        output: Where to write.
        source: The prompt.
        images: Files of images, which come before the prompt.
        advance: Called with 1 when a token was generated.

    Raises:
        WhenceError: Something is wrong with the prompt, the images, the model or the folder.
    """
    settings.check()
    if settings.model is None:
        raise WhenceError(
            "No model that comes with whence writes about images: name one with --model, a folder "
            "or a name on the hub."
        )
    for path in images:
        check_is_file(path, "an image")
    photos = [read_image(path) for path in images]
    prompt = source.text if source.text is not None else str(source.read())
    prompt = validate_text(prompt, "The prompt")
    (name,) = choose_names([source])
    files = {
        "page": output.folder / f"{name}.html",
        "figure": output.folder / f"{name}.{output.image_format}",
        "scores": output.folder / f"{name}.json",
        "generation": output.folder / f"{name}.safetensors",
    }
    check_writable(output.folder)
    if not output.force:
        check_absent(list(files.values()))
    loaded = load_vision_language_model(settings.model, settings.device)
    explainer = Explainer(loaded.model, tokenizer=loaded.processor.tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WhenceWarning)  # notes of the result say it
        result = explainer.explain_generation(
            loaded.encode(prompt, photos),
            settings.tokens,
            of=_BOTH,
            **settings.method.explain_arguments(),
            against=settings.against,
            memory=settings.memory,
            streamer=TokenCounter(advance),
        )
    generation = result["input_ids"]
    if not isinstance(generation, Generation):
        raise TypeError("The words of generated text are a Generation.")
    for one in result.values():
        one.model = loaded.name
    notes = list(dict.fromkeys(note for one in result.values() for note in one.notes))
    with stage_files(output.folder) as stage:
        page = format_generation_page(generation, by=settings.by, title=source.title)
        (stage / files["page"].name).write_text(page, encoding="utf-8")
        content = format_json(generation, settings.by)
        (stage / files["scores"].name).write_text(content, encoding="utf-8", newline="")
        result.save(stage / files["generation"].name)
        result.plot(title=source.title).save(stage / files["figure"].name)
    return GenerationResult(generation, files, notes)
