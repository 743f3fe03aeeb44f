"""Gradio's components for files, less what a page for strangers must not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from whence.errors import WhenceError

class _Uploaded:
    """Hands on the path of a file that this page received, and nothing else.

    Gradio would also fetch an address that a request names, and decode a photo before anyone has
    looked at its size.
    """

    async def async_move_resource_to_block_cache(self, url_or_file_path: Any) -> str | None:
        """As Gradio does it, for files alone."""
        if str(url_or_file_path).lower().startswith(("http:", "https:")):
            raise gr.Error(_NOT_UPLOADED, print_exception=False)
        moved: str | None = await super().async_move_resource_to_block_cache(url_or_file_path)  # type: ignore[misc]
        return moved

    def preprocess(self, payload: Any) -> Path | None:
        """The path of the upload; None if nothing was uploaded."""
        if payload is None:
            return None
        try:
            return uploaded(payload.path or "")
        except WhenceError as error:
            raise gr.Error(str(error), print_exception=False) from None

class PhotoUpload(_Uploaded, gr.Image):  # type: ignore[misc]
    """A photo by upload, drop or paste."""

    def get_block_name(self) -> str:
        """What it is to the browser."""
        return "image"
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component

class FileUpload(_Uploaded, gr.File):  # type: ignore[misc]
    """Any other file."""

    def get_block_name(self) -> str:
        """What it is to the browser."""
        return "file"
    from typing import Callable, Literal, Sequence, Any, TYPE_CHECKING
    from gradio.blocks import Block
    if TYPE_CHECKING:
        from gradio.components import Timer
        from gradio.components.base import Component

_NOT_UPLOADED = "That is no file that was uploaded to this page."

def uploaded(path: str) -> Path:
    """The path, if it lies in the folder of uploads.

    Raises:
        WhenceError: It does not.
    """
    folder = Path(get_upload_folder()).resolve()
    try:
        found = Path(path).resolve()
        inside = found.is_relative_to(folder) and found.is_file()
    except (OSError, ValueError):  # a name that no file can have
        inside = False
    if not inside:
        raise WhenceError(_NOT_UPLOADED)
    return found
