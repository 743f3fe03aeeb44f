"""Let torchvision import in worker processes, as tests/conftest.py does in its own process."""

import importlib.abc
import sys


class _DeclareOperators(importlib.abc.MetaPathFinder):
    """Call the shim of tests/conftest.py when torchvision is about to be imported."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import contextlib

            import torch

            if torch.version.cuda is None:
                library = torch.library.Library("torchvision", "FRAGMENT")
                _DeclareOperators.library = library  # kept alive
                for operator in ("nms", "qnms"):
                    signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                    with contextlib.suppress(RuntimeError):
                        library.define(operator + signature)


sys.meta_path.insert(0, _DeclareOperators())
