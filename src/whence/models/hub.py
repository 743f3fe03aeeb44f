"""Ask the model hub for a model or a file, with errors that say in a sentence what went wrong."""

from __future__ import annotations

from pathlib import Path

from whence._util.near_names import suggest_names, suggest_paths
from whence.errors import WhenceError
from whence.models.folder import list_embedded

_SECONDS = 10


def check_on_hub(name: str) -> None:
    """Ask the hub whether it has a model, so that a missing network or model is known in seconds.

    The libraries that download retry for half a minute, and then blame the cache.
    """
    from huggingface_hub import HfApi, errors

    try:
        HfApi().model_info(name, timeout=_SECONDS)
    except errors.HFValidationError:
        raise WhenceError(f"'{name}' is neither a folder nor a possible name of a model.") from None
    except errors.GatedRepoError:
        raise WhenceError(
            f"The hub gives '{name}' only to those who agreed to its terms; log in with `hf auth "
            f"login`."
        ) from None
    except errors.RepositoryNotFoundError:
        raise WhenceError(f"'{name}' is neither a folder nor a public model on the hub.") from None
    except errors.OfflineModeIsEnabled:
        raise WhenceError(_explain(name, "the hub is switched off (HF_HUB_OFFLINE)")) from None
    except Exception as error:  # every HTTP library has its own
        raise WhenceError(_explain(name, "the hub cannot be reached")) from error


def fetch(name: str, filename: str) -> str:
    """Fetch a file of a model on the hub, from the cache if it is there."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return hf_hub_download(name, filename, local_files_only=True)
    except (LocalEntryNotFoundError, OSError):
        check_on_hub(name)
    try:
        return hf_hub_download(name, filename)
    except EntryNotFoundError:
        raise WhenceError(f"'{name}' on the hub has no {filename}.") from None
    except Exception as error:  # every HTTP library has its own
        raise WhenceError(f"{filename} of '{name}' could not be fetched: {error}.") from error


def _explain(name: str, why: str) -> str:
    near = suggest_paths(Path(name)) or suggest_names(name, list_embedded())
    return (
        f"'{name}' is not on this machine, neither as a folder nor in the hub's cache, and {why}."
        f"{near} Without a network, name a folder that holds a model, or "
        f"leave the model out to use the embedded one."
    )
