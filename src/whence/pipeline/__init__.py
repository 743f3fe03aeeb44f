"""From photos and texts to explanations and result files, a batch at a time."""

from whence.pipeline.explain import ExplainedInput, ExplainSettings, explain_sources
from whence.pipeline.generate import (
    GenerateSettings,
    GenerationResult,
    generate_to_files,
    read_passages,
    read_prompt,
)
from whence.pipeline.results import InputResult, OutputSettings, explain_to_files, format_summary

__all__ = [
    "ExplainSettings",
    "ExplainedInput",
    "GenerateSettings",
    "GenerationResult",
    "InputResult",
    "OutputSettings",
    "explain_sources",
    "explain_to_files",
    "format_summary",
    "generate_to_files",
    "read_passages",
    "read_prompt",
]
