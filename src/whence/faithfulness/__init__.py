"""Is it faithful? What becomes of a class as parts of one input are removed."""

from whence.faithfulness.curves import (
    DRAWS,
    STEPS,
    Curves,
    Faithfulness,
    Progress,
    compare,
    measure,
)

__all__ = ["DRAWS", "STEPS", "Curves", "Faithfulness", "Progress", "compare", "measure"]
