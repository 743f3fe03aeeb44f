"""Ray's readers give the inputs that a local run reads, and leave out those that have a row."""

import io
import json
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest

from tests.saved import make_photo
from whence.distributed import ResultFolder, RunSettings
from whence.distributed.ray_cluster import RayOptions
from whence.distributed.run import run_many
from whence.errors import WhenceError
from whence.methods.registry import MethodSpecification
from whence.pipeline import ExplainSettings

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.fs")
checkpoint = pytest.importorskip("ray.data.checkpoint")

from whence.distributed import ray_readers  # noqa: E402

COUNT = 12


def _source(**facts):
    return SimpleNamespace(facts=facts, kind="image")


def test_finished_rows_are_known_by_their_ids_as_texts():
    pytest.importorskip("ray")
    finished = ray_readers._make_filter("number")
    one = finished.__new__(finished)  # without the cluster that holds the ids
    one.id_column, one.checkpointed_ids = "id", np.array(["10", "7", "8"], dtype=object)
    block = pa.table({"number": [6, 7, 8, 9, 10, 70], "image": list("abcdef")})

    for given in (block, block.to_pandas()):  # Ray reads archives as pandas
        left = one.filter_rows_for_block(given)
        assert left.column("number").to_pylist() == [6, 9, 70]
        assert left.column("image").to_pylist() == ["a", "d", "f"]


def test_tables_are_filtered_by_their_own_column():
    place = SimpleNamespace(join=lambda name: f"/{name}", files=pa.fs.LocalFileSystem())
    folder = SimpleNamespace(place=place, list_parts=list)
    chosen = ray_readers.make_checkpoints(_source(format="parquet", id="number"), folder)
    if not hasattr(chosen, "checkpoint_filter_cls"):
        pytest.skip("this Ray has no filters of others")
    assert issubclass(chosen.checkpoint_filter_cls, checkpoint.NumpyArrayBasedCheckpointFilter)
    assert (chosen.id_column, chosen.delete_checkpoint_on_success) == ("id", False)
    files = ray_readers.make_checkpoints(_source(format="files"), folder)
    assert files.checkpoint_filter_cls is None


def test_an_old_ray_goes_on_with_files_but_not_with_tables(monkeypatch):
    def configure(id_column, checkpoint_path, *, override_filesystem, delete_checkpoint_on_success):
        return checkpoint_path

    monkeypatch.setattr(checkpoint, "CheckpointConfig", configure)
    place = SimpleNamespace(join=lambda name: name, files=None)
    begun = SimpleNamespace(place=place, list_parts=lambda: ["a.parquet"])
    fresh = SimpleNamespace(place=place, list_parts=list)

    assert ray_readers.make_checkpoints(_source(format="files"), begun)
    assert ray_readers.make_checkpoints(_source(format="parquet", id="id"), fresh)
    with pytest.raises(WhenceError, match=r"Ray 2\.60 or later is needed"):
        ray_readers.make_checkpoints(_source(format="parquet", id="id"), begun)


def _encode(seed: int) -> bytes:
    file = io.BytesIO()
    make_photo(seed=seed).save(file, "PNG")
    return file.getvalue() if seed != 5 else b"corrupt"


def _write_parquet(folder):
    import pyarrow.parquet as pq

    photos = [{"bytes": _encode(one), "path": f"{one}.png"} for one in range(COUNT)]
    pq.write_table(pa.table({"number": range(COUNT), "image": photos}), folder / "a.parquet")
    return "a.parquet", {"id": "number"}


def _write_json(folder):
    for one in range(COUNT):
        (folder / f"{one}.png").write_bytes(_encode(one))
    lines = [json.dumps({"id": f"row {one}", "path": f"{one}.png"}) for one in range(COUNT)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return "a.jsonl", {}


def _write_csv(folder):
    _write_files(folder)
    lines = [f"{one:03},{one}.png" for one in range(COUNT)]
    (folder / "a.csv").write_text("\n".join(["id,path", *lines]))
    return "a.csv", {}


def _write_archive(folder):
    with tarfile.open(folder / "a.tar", "w") as archive:
        for one in range(COUNT):
            for ending, content in (("png", _encode(one)), ("json", b'{"label": 1}')):
                member = tarfile.TarInfo(f"photos/{one:03}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return "a.tar", {}


def _write_lance(folder):
    lance = pytest.importorskip("lance")
    table = pa.table({"id": range(COUNT), "image": list(map(_encode, range(COUNT)))})
    lance.write_dataset(table, str(folder / "a.lance"))
    return "a.lance", {}


def _write_files(folder):
    for one in range(COUNT):
        (folder / f"{one}.png").write_bytes(_encode(one))
    return "*.png", {}


@pytest.mark.slow
@pytest.mark.parametrize("address", ["", "file://"])
@pytest.mark.parametrize(
    "write",
    [_write_files, _write_parquet, _write_json, _write_csv, _write_archive, _write_lance],
)
def test_a_run_on_ray_goes_on_and_equals_a_local_one(
    ray_cluster, image_model, tmp_path, write, address
):
    from whence.distributed.ray_run import run_on_ray

    (tmp_path / "inputs").mkdir()
    name, named = write(tmp_path / "inputs")
    method = MethodSpecification("rollout", "rollout")
    explain = ExplainSettings((method,), str(image_model), device="cpu")
    settings = RunSettings(explain, part_rows=3, threads=1, **named)
    source = [f"{address}{tmp_path}/inputs/{name}"]
    out = f"{address}{tmp_path}/out"
    options = RayOptions(actors=2)
    run_on_ray(source, settings, out, options)
    parts = sorted((tmp_path / "out").glob("*.parquet"))
    parts[0].unlink()

    summary = run_on_ray(source, settings, out, options)

    local = run_many(source, settings, tmp_path / "local")
    assert (summary.inputs, summary.explained, summary.failed) == (COUNT, COUNT - 1, 1)
    assert summary.is_complete
    assert local.is_complete
    there = {row["id"]: row for row in ResultFolder(out).read_rows()}
    here = {row["id"]: row for row in ResultFolder(tmp_path / "local").read_rows()}
    assert set(there) == set(here)
    for one in here:
        assert there[one]["error"] == here[one]["error"]
        np.testing.assert_allclose(there[one]["scores"], here[one]["scores"], atol=1e-6)
