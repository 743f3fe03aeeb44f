"""Generate text after a prompt, explain every word of it, and write the results to files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from whence._util.files import check_is_file, check_writable, is_file, stage_files
from whence.errors import WhenceError, WhenceWarning
from whence.explanation import Generation
from whence.inputs.sources import Source, check_is_sentence
from whence.inputs.texts import validate_text
from whence.layout.grouping import KINDS, Grouping, Passages
from whence.methods import registry
from whence.methods.registry import MethodSpecification
from whence.models import LoadedModel, load_language_model
from whence.pipeline.entries import OutputSettings
from whence.pipeline.results import check_absent, choose_names
from whence.render import format_generation_page
from whence.render.files import format_csv, format_json
from whence.rules import get as get_rules


@dataclass(frozen=True)
class GenerateSettings:
    """The language model, as `whence.models.load_language_model` takes it, and what to explain."""

    method: MethodSpecification
    model: str | None = None
    device: str | None = None
    tokens: int = 20  # how many to generate at most
    against: str | None = None  # a token: why each generated token and not this one
    by: Grouping = "word"  # as `Generation.matrix` takes it
    chat: bool = False  # whether the prompt is the user's turn of a chat
    memory: float | None = None  # gibibytes, as `Explainer.explain` takes them
    precision: str | None = None

    def check(self) -> None:
        """Refuse wrong settings before a model is loaded."""
        registry.build(self.method.name, self.method.options)
        get_rules(self.method.rules)
        if self.tokens < 1:
            raise WhenceError(f"At least one token is generated, not {self.tokens}.")
        if isinstance(self.by, str) and self.by not in KINDS:
            raise WhenceError(f"by is one of {', '.join(KINDS)}, not '{self.by}'.")


@dataclass(frozen=True)
class GenerationResult:
    """What was generated, and the files that tell of it."""

    generation: Generation
    files: dict[str, Path]  # by what they hold: page, figure, scores, table, generation
    notes: list[str] = field(default_factory=list)


def read_prompt(argument: str, as_text: bool = False) -> Source:
    """The prompt that an argument is: text itself, a text file, or - for standard input.

    Args:
        argument: One word that names no file, or what looks like a path, is an error.
        as_text: Whether it is text in any case.
    """
    if as_text:
        return Source("text", text=argument)
    if argument == "-":
        return Source("text")
    if len(argument) < 1000 and is_file(Path(argument)):
        return Source("text", Path(argument))
    if argument.strip():
        check_is_sentence(argument, "--text")
    return Source("text", text=argument)


def read_passages(path: Path) -> Passages:
    """Read passages of a prompt from a JSON file.

    It holds an object of names, or a list: texts of passages, or pairs of their first character and
    the one after their last.

    Raises:
        WhenceError: There is no such file, or it holds something else.
    """
    check_is_file(path, "a JSON file of passages")
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WhenceError(f"'{path}' is not valid JSON: {error}.") from None
    passages = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(passages, list) or not all(map(_is_passage, passages)):
        raise WhenceError(
            f"'{path}' does not hold passages: an object of names, or a list, of texts or of pairs "
            f"such as [0, 120]: the first character and the one after the last."
        )
    return found  # type: ignore[no-any-return]


def _is_passage(value: object) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int for one in value)


def generate_to_files(
    settings: GenerateSettings,
    output: OutputSettings,
    source: Source,
    advance: Callable[[int], None] = lambda _: None,
) -> GenerationResult:
    """Generate text after a prompt, explain it, and write page, figure and data.

    Args:
        settings: The model and what to explain.
        output: Where to write.
        source: The prompt.
        advance: Called with 1 when a token was generated.

    Raises:
        WhenceError: Something is wrong with the prompt, the model, the settings or the folder.
    """
    settings.check()
    prompt = source.text if source.text is not None else str(source.read())
    prompt = validate_text(prompt, "The prompt")
    (name,) = choose_names([source])
    files = {
        "page": output.folder / f"{name}.html",
        "figure": output.folder / f"{name}.{output.image_format}",
        "scores": output.folder / f"{name}.json",
        "table": output.folder / f"{name}.csv",
        "generation": output.folder / f"{name}.safetensors",
    }
    check_writable(output.folder)
    if not output.force:
        check_absent(list(files.values()))
    loaded = load_language_model(settings.model, settings.device, precision=settings.precision)
    generation = _generate(loaded, settings, prompt, advance)
    generation.model, generation.model_knows = loaded.title, loaded.knows
    notes = list(generation.notes)
    with stage_files(output.folder) as stage:
        title = source.title
        page = format_generation_page(generation, by=settings.by, title=title)
        (stage / files["page"].name).write_text(page, encoding="utf-8")
        for kind, form in (("scores", format_json), ("table", format_csv)):
            content = form(generation, settings.by)
            (stage / files[kind].name).write_text(content, encoding="utf-8", newline="")
        generation.save(stage / files["generation"].name)
        try:
            generation.plot(by=settings.by, title=title).save(stage / files["figure"].name)
        except WhenceError as error:  # a long text is no figure, but all else is
            notes.append(f"There is no figure: {error}".removesuffix("."))
            del files["figure"]
    return GenerationResult(generation, files, notes)


def encode_prompt(loaded: LoadedModel, prompt: str, chat: bool = False) -> dict[str, Any]:
    """Tokenise a prompt, as it is or as the user's turn of a chat.

    Raises:
        WhenceError: The tokenizer has no chat template, or finds nothing in the prompt.
    """
    tokenizer = loaded.tokenizer
    if chat and not getattr(tokenizer, "chat_template", None):
        raise WhenceError(
            f"The tokenizer of '{loaded.title}' has no chat template; leave --chat out, or name a "
            f"model that was trained to chat."
        )
    if chat:
        turns = [{"role": "user", "content": prompt}]
        encoded = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        encoded = tokenizer([prompt], return_tensors="pt", verbose=False)
    ids = encoded["input_ids"]
    if not ids.numel() or set(tokenizer.all_special_ids).issuperset(ids[0].tolist()):
        raise WhenceError(f"The model's tokenizer finds no words in {prompt[:40]!r}.")
    names = ("input_ids", "attention_mask")
    return {name: encoded[name].to(loaded.device) for name in names if name in encoded}


class TokenCounter:
    """What `generate` calls a streamer: counts the tokens as they come."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance, self._has_prompt = advance, False

    def put(self, _tokens: object) -> None:
        """Count a token."""
        if self._has_prompt:  # which comes first
            self._advance(1)
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is left to do."""


def _generate(
    loaded: LoadedModel, settings: GenerateSettings, prompt: str, advance: Callable[[int], None]
) -> Generation:
    inputs = encode_prompt(loaded, prompt, settings.chat)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # notes of the result say it
            generation: Generation = loaded.explainer.explain_generation(
                inputs,
                settings.tokens,
                **settings.method.explain_arguments(),
                against=settings.against,
                memory=settings.memory,
                streamer=TokenCounter(advance),
            )
            return generation
    except torch.OutOfMemoryError:
        message = "The device's memory is too small; generate fewer tokens, or give --memory."
        raise WhenceError(message) from None
