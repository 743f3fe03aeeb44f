"""Explain many inputs that may be of two kinds, each kind with its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from whence.inputs.sources import Kind, Source
from whence.models import LoadedModel
from whence.pipeline.batches import BatchExplainer, ExplainedInput
from whence.pipeline.settings import ExplainSettings


def explain_sources(
    settings: ExplainSettings, sources: Sequence[Source], models: dict[Kind, LoadedModel]
) -> Iterator[ExplainedInput]:
    """Explain inputs with the models of `ExplainSettings.load_models`, model by model.

    Inputs that fail come with their error; if no input can be explained, it is raised.
    """
    for index, source in enumerate(sources):
        if source.problem is not None or source.kind not in models:
            other = next(iter(models.values()))
            mismatch = f"The model '{other.title}' explains {other.kind}s, not {source.kind}s."
            yield ExplainedInput(index, other, error=source.problem or mismatch)
    readable = [index for index, source in enumerate(sources) if source.problem is None]
    for kind, loaded in models.items():
        indices = [index for index in readable if sources[index].kind == kind]
        unsuited = _find_unsuited_method(settings, kind, models)
        if unsuited:
            # It explains inputs of the other kind: these inputs fail, and the others do not.
            yield from (ExplainedInput(index, loaded, error=unsuited) for index in indices)
            continue
        explainer = BatchExplainer(settings, loaded)
        for one in explainer.explain([sources[index] for index in indices]):
            yield replace(one, index=indices[one.index])


def _find_unsuited_method(
    settings: ExplainSettings, kind: Kind, models: dict[Kind, LoadedModel]
) -> str | None:
    for one in settings.methods:
        kinds = one.description.inputs
        if kind not in kinds and set(models) & set(kinds):
            return f"Method '{one.name}' explains {' and '.join(kinds)}s only."
    return None
