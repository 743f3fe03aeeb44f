import math
import os

import pytest

from whence.distributed.ray_cluster import RayOptions, choose_actors, start_ray
from whence.errors import WhenceError


def test_actors_leave_two_cpus_for_reading_and_writing():
    nodes = [{"CPU": 4.0}, {"CPU": 4.0}]

    chosen = choose_actors(RayOptions(), nodes)

    assert (chosen.actors, chosen.gpus_per_actor) == (6, 0.0)
    assert choose_actors(RayOptions(cpus_per_actor=0.5), nodes).actors == 12


def test_each_gpu_gets_an_actor():
    nodes = [{"CPU": 16.0, "GPU": 8.0}, {"CPU": 16.0}]

    assert choose_actors(RayOptions(), nodes).actors == 8
    assert choose_actors(RayOptions(gpus_per_actor=0.5), nodes).actors == 16
    assert choose_actors(RayOptions(gpus_per_actor=0.0), nodes).actors == 30


def test_an_actor_fits_on_one_node():
    nodes = [{"CPU": 3.0}, {"CPU": 3.0}]

    assert choose_actors(RayOptions(cpus_per_actor=2.0), nodes).actors == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (RayOptions(actors=3), "has 4 CPUs: too few for 3 actors of 1 CPU.*--actors 2 or less"),
        (RayOptions(cpus_per_actor=4), "too few for 1 actor of 4 CPUs"),
        (RayOptions(gpus_per_actor=1), "has 0 GPUs, and no node has 1 with 1 CPU"),
    ],
)
def test_a_small_cluster_is_refused(options, sentence):
    with pytest.raises(WhenceError, match=sentence):
        choose_actors(options, [{"CPU": 2.0}, {"CPU": 2.0}])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (RayOptions(address="ray://head:10001"), "not supported"),
        (RayOptions(address="head"), "is no address"),
        (RayOptions(address="127.0.0.1:9"), "No Ray cluster answers at 127.0.0.1:9"),
        (RayOptions(actors=0), "at least 1"),
        (RayOptions(cpus_per_actor=0), "above 0"),
        (RayOptions(cpus_per_actor=math.inf), "above 0, not inf"),
        (RayOptions(gpus_per_actor=-1), "0 or more"),
        (RayOptions(gpus_per_actor=math.nan), "0 or more, not nan"),
    ],
)
def test_wrong_options_are_refused_at_once(options, sentence, monkeypatch):
    pytest.importorskip("ray.data")
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests may have started it

    with pytest.raises(WhenceError, match=sentence), start_ray(options):
        pass


@pytest.mark.parametrize(("set_to", "read"), [(None, "0"), ("1", "1")])
def test_a_cluster_started_here_sends_no_statistics_unless_asked_to(set_to, read, monkeypatch):
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    name, seen = "RAY_USAGE_STATS_ENABLED", []
    monkeypatch.setenv(name, "")  # so that it is put back
    monkeypatch.delenv(name)
    if set_to is not None:
        monkeypatch.setenv(name, set_to)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def start(*arguments, **options):
        seen.append(os.environ.get(name))
        raise WhenceError("nothing is started")

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(WhenceError, match="nothing is started"), start_ray(RayOptions()):
        pass
    assert seen == [read]
