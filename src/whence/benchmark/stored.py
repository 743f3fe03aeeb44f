"""A result of a run over many inputs, as a dataset and as a method whose scores are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from whence._util.defaults import METHOD
from whence._util.fingerprint import hash_weights
from whence.datasets import Dataset, Sample
from whence.distributed import ResultFolder
from whence.distributed.addresses import is_address
from whence.distributed.contents import Item
from whence.distributed.file_source import FileSource
from whence.distributed.lookup import RowLookup
from whence.distributed.sources import open_recorded_source
from whence.errors import WhenceError
from whence.explanation import Explanation
from whence.methods import MethodSpecification, parse_methods
from whence.models import LoadedModel
from whence.models.forward import compute_logits

if TYPE_CHECKING:
    from whence.benchmark.protocols.base import AnyProtocol


# Photos and texts of a table are held in memory, since it can only be read from its beginning.
_MAX_HELD = 20_000


def is_result(data: str | Path) -> bool:
    """Whether a path is that of a result; an address can be nothing else."""
    if is_address(str(data)):
        return True
    return (Path(data).expanduser() / "_whence" / "run.json").is_file()


class ResultDataset(Dataset):
    """The inputs of a result as samples without labels; their names are the ids."""

    def __init__(self, folder: ResultFolder) -> None:
        described = folder.description
        self.folder = folder
        self.lookup = RowLookup(folder)
        record = _ResultRecord(self.lookup, described.fingerprint)
        name = Path(folder.address.rstrip("/")).name
        records = dict.fromkeys(self.lookup.list_ids(), record)
        if not records:
            raise WhenceError(f"'{folder.address}' holds no rows yet.")
        super().__init__(f"results-{name}", records, described.kind)
        self._record = record

    @override
    def announce(self, names: Sequence[str]) -> None:
        self._record.announce(names)


class _ResultRecord:
    """Reads any input of a result; the record of all samples."""

    def __init__(self, lookup: RowLookup, fingerprint: str) -> None:
        self._lookup = lookup
        self._fingerprint = fingerprint
        self._source = open_recorded_source(lookup.folder)
        self._held: dict[str, Item] = {}

    def announce(self, names: Sequence[str]) -> None:
        """Read the rows of a table that will be asked for."""
        if isinstance(self._source, FileSource):
            return
        if len(names) > _MAX_HELD:
            raise WhenceError(
                f"The inputs of '{self._lookup.folder.address}' are rows of a table, of which at "
                f"most {_MAX_HELD:,} are held in memory; give --limit."
            )
        self._held = {item.id: item for item in self._source.find_items(names)}

    def read_sample(self, name: str) -> Sample:
        """Read the photo or the text of an id."""
        if error := self._lookup.find_row(name)["error"]:
            raise WhenceError(f"'{name}' was not explained: {error}")
        if isinstance(self._source, FileSource):
            (item,) = self._source.find_items([name])
        elif name in self._held:
            item = self._held[name]
        else:
            raise WhenceError(f"'{name}' is not in the table any more.")
        return Sample(name, item.read())

    def list_facts(self) -> list[object]:
        """Return the fingerprint of the run."""
        return [self._fingerprint]


@dataclass(frozen=True)
class StoredMethod(MethodSpecification):
    """The method of a result, whose scores are read and not computed."""

    lookup: RowLookup = field(kw_only=True, repr=False, compare=False)

    def restore(
        self, loaded: LoadedModel, inputs: Tensor | Mapping[str, Any], names: Sequence[str]
    ) -> Explanation:
        """Read the explanations of a batch of inputs for the predicted class.

        Args:
            loaded: The model that made them.
            inputs: As the model takes them, all of one size.
            names: Their ids.

        Raises:
            WhenceError: One was not explained, or for another class than the model predicts now.
        """
        folder = self.lookup.folder
        single = [folder.read_explanation(row) for row in self.lookup.find_rows(names)]
        logits = compute_logits(loaded, inputs)
        scores = torch.stack([one.scores.reshape(-1, one.scores.shape[-1])[0] for one in single])
        target = torch.stack([one.target.reshape(-1)[0] for one in single])
        classes = [one.classes()[0].name for one in single]
        for name, stored, index, now in zip(
            names, classes, target.tolist(), logits.argmax(-1).tolist(), strict=True
        ):
            if index != now:
                other = loaded.class_names.get(now, f"class {now}")
                raise WhenceError(
                    f"'{name}' was explained for '{stored}', and the model predicts '{other}' now."
                )
        sides = inputs.shape[-2:] if isinstance(inputs, Tensor) else None
        return dataclasses.replace(
            single[0],
            scores=scores.to(logits.device),
            target=target.to(logits.device),
            logits=logits,
            image_size=None if sides is None else (sides[0], sides[1]),
            tokens=None,
            target_names=classes,
            checks=[],
            probabilities=None,
        )


def choose_methods(
    methods: str | Sequence[str] | None, rules: str, dataset: Dataset, protocol: AnyProtocol
) -> list[MethodSpecification]:
    """List the methods that are judged: the stored one of a result, and those that were named.

    Raises:
        WhenceError: A method is unknown, or there is none to judge.
    """
    if not isinstance(dataset, ResultDataset):
        return parse_methods(METHOD if methods is None else methods, rules)
    named = [] if methods is None else parse_methods(methods, rules)
    if protocol.judges_stored:
        return [_find_stored(dataset), *named]
    if not named:
        raise WhenceError(
            f"The {protocol.name} benchmark does not judge stored scores, as perturbation does; "
            f"name methods with --methods, which explain the inputs of "
            f"'{dataset.folder.address}' again."
        )
    return named


def check_model(loaded: LoadedModel, dataset: Dataset) -> None:
    """Refuse another model than the one that made a result."""
    if isinstance(dataset, ResultDataset):
        made_by = dataset.folder.description.depends_on["model weights"]
        if hash_weights(loaded.model) != made_by:
            raise WhenceError(
                f"The model '{loaded.title}' has other weights than the one that made "
                f"'{dataset.folder.address}', whose scores would be judged with it."
            )


def _find_stored(dataset: ResultDataset) -> StoredMethod:
    settings = dataset.folder.settings
    how = settings.explain
    chosen = {"--target": how.targets, "--against": how.against, "--of": how.of}
    for option, value in chosen.items():
        if value:
            raise WhenceError(
                f"'{dataset.folder.address}' was made with {option}, and the benchmark judges "
                f"scores of the predicted class; explain without it."
            )
    one = settings.method
    return StoredMethod(
        f"{one.label} (stored)", one.name, one.options, one.rules, lookup=dataset.lookup
    )
