"""Small models and samples that come with the library, so that it works without a model hub."""

from pathlib import Path

FOLDER = Path(__file__).parent
PHOTO = FOLDER / "cat.jpg"
SENTENCES = (
    "The story is thin, but the acting is superb and the ending deeply moving.",
    "An unwatchable mess, not worth a minute of your time.",
    "Two hours of fine actors with nothing to say.",
)
PROMPTS = (
    "Sara has a cat. Ben has a dog. Mia has a bird. Ben gave some food to his",
    "Once upon a time, there was a little girl named Lily. She had a red ball. Her friend Tom had "
    "a blue kite.",
    "One day, Sara found a big box. She opened the box and saw",
)
