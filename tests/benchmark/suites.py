"""Requests of several protocols, models and datasets."""

from whence import benchmark
from whence.benchmark.overview.writing import OverviewPictures

PROTOCOLS = "saco:groups=4,segmentation"
METHODS = "tiba,random,rollout"


def run_again(vit, other_vit, masked, photos, out, **changes):
    given = {
        "protocols": PROTOCOLS,
        "models": [vit, other_vit],
        "data": [masked, photos],
        "methods": METHODS,
        "batch": 2,
        "limit": 3,
        "out": out,
    }
    return benchmark.run_suite(**given | changes)


def leave_out_pictures(patch):
    """Leave out what takes longest, in runs whose pages nobody looks at."""
    nothing = OverviewPictures(None, None)
    patch.setattr("whence.benchmark.report.render_page", lambda *_: "")
    patch.setattr("whence.benchmark.charts.draw_chart", lambda *_: None)
    patch.setattr("whence.benchmark.output.draw_pictures", lambda _: nothing)
    patch.setattr("whence.benchmark.overview.writing.draw_pictures", lambda _: nothing)
