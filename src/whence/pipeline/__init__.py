"""From photos and texts to explanations and result files, a batch at a time."""

from whence.pipeline.batches import BatchExplainer, ExplainedInput, explain_sources
from whence.pipeline.entries import InputResult, OutputSettings
from whence.pipeline.generate import (
    GenerateSettings,
    GenerationResult,
    generate_to_files,
    read_passages,
    read_prompt,
)
from whence.pipeline.generate_images import generate_after_images
from whence.pipeline.results import explain_to_files, format_summary
from whence.pipeline.settings import ExplainSettings

__all__ = [
    "BatchExplainer",
    "ExplainSettings",
    "ExplainedInput",
    "GenerateSettings",
    "GenerationResult",
    "InputResult",
    "OutputSettings",
    "explain_sources",
    "explain_to_files",
    "format_summary",
    "generate_after_images",
    "generate_to_files",
    "read_passages",
    "read_prompt",
]
