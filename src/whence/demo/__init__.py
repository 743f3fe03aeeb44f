"""Small models and samples that come with the library, so that it works without a model hub."""

from pathlib import Path

PHOTO = Path(__file__).parent / "cat.jpg"
SENTENCES = (
    "The story is thin, but the acting is superb and the ending deeply moving.",
    "An unwatchable mess, not worth a minute of your time.",
    "Two hours of fine actors with nothing to say.",
)
