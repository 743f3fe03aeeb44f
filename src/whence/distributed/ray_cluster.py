"""Connect to a Ray cluster, or start one on this machine, and see how many actors it can hold."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from whence._util.extras import import_extra
from whence.errors import WhenceError

# CPUs beside the actors: Ray's filter of finished rows holds one for as long as a run lasts, and
# tasks that read, divide and write take turns on the other. With fewer, Ray waits forever.
SPARE_CPUS = 2
_CONNECT_SECONDS = 5


@dataclass(frozen=True)
class RayOptions:
    """Which cluster to use, and how many actors of what size; None: what suits the cluster."""

    address: str | None = None  # of the head node, HOST:PORT; None: a cluster on this machine
    actors: int | None = None  # processes that each load the model once
    cpus_per_actor: float = 1.0
    gpus_per_actor: float | None = None

    def check(self) -> None:
        """Refuse options that no cluster can fulfil."""
        if self.actors is not None and self.actors < 1:
            raise WhenceError(f"--actors must be at least 1, not {self.actors}.")
        if not 0 < self.cpus_per_actor < math.inf:
            raise WhenceError(f"--cpus-per-actor must be above 0, not {self.cpus_per_actor:g}.")
        if self.gpus_per_actor is not None and not 0 <= self.gpus_per_actor < math.inf:
            raise WhenceError(f"--gpus-per-actor must be 0 or more, not {self.gpus_per_actor:g}.")
        if self.address is not None and self.address.startswith("ray://"):
            raise WhenceError(
                "Ray Client (ray://) is not supported: run the command on a node of the cluster, "
                "with --address auto or the head's HOST:PORT."
            )


@dataclass(frozen=True)
class RayResources:
    """The actors that a cluster holds for one run."""

    actors: int
    cpus_per_actor: float
    gpus_per_actor: float

    @property
    def actor_options(self) -> dict[str, Any]:
        """Arguments of `map_batches` that give each actor its share."""
        from ray.data import ActorPoolStrategy

        options: dict[str, Any] = {
            "compute": ActorPoolStrategy(size=self.actors),
            "num_cpus": self.cpus_per_actor,
        }
        if self.gpus_per_actor:
            options["num_gpus"] = self.gpus_per_actor
        return options


@contextmanager
def start_ray(options: RayOptions) -> Iterator[RayResources]:
    """Use the Ray of this process, or connect, or start a cluster here, while the block lasts.

    Ray's own messages are kept silent. Only what was started or connected here is shut down.

    Raises:
        WhenceError: Ray is not installed, the cluster cannot be reached, or it is too small.
    """
    options.check()
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # read by ray.init
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # or it is reported to Ray's makers
    ray = import_extra("ray", "ray", "ray")
    import_extra("ray.data", "ray[data]", "ray")
    address = options.address or os.environ.get("RAY_ADDRESS")
    is_ours = not ray.is_initialized()
    with _silence("ray.data"):
        if is_ours and address:
            _connect(ray, address)
        elif is_ours:
            _start(ray, options)
        try:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            yield choose_actors(options, nodes)
        finally:
            if is_ours:
                ray.shutdown()


def choose_actors(options: RayOptions, nodes: list[dict[str, float]]) -> RayResources:
    """Choose the number of actors for nodes with these resources, or say what is too small."""
    cpus = sum(node.get("CPU", 0.0) for node in nodes)
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    each = options.cpus_per_actor
    each_gpu = options.gpus_per_actor
    if each_gpu is None:
        each_gpu = 1.0 if gpus >= 1 else 0.0
    fitting = sum(_count_fitting(node, each, each_gpu) for node in nodes)
    if each_gpu and fitting == 0:
        has = f"has {_count(gpus, 'GPU')}, and no node has {each_gpu:g} with {_count(each, 'CPU')}"
        raise WhenceError(f"The Ray cluster {has}, as an actor asks for.")
    most = min(fitting, math.floor((cpus - SPARE_CPUS) / each + 1e-9))
    actors = options.actors or most
    if actors > most or most < 1:
        asked = f"{_count(actors or 1, 'actor')} of {_count(each, 'CPU')}"
        asked += f" and {_count(each_gpu, 'GPU')}" if each_gpu else ""
        advice = f"give --actors {most} or less, " if most >= 1 else ""
        raise WhenceError(
            f"The Ray cluster has {_count(cpus, 'CPU')}"
            + (f" and {_count(gpus, 'GPU')}" if gpus else "")
            + f": too few for {asked}, beside {SPARE_CPUS} CPUs for reading and writing; "
            + advice
            + "give a smaller --cpus-per-actor, or start nodes with a larger --num-cpus."
        )
    return RayResources(actors, each, each_gpu)


def _count_fitting(node: dict[str, float], cpus: float, gpus: float) -> int:
    """How many actors a node can hold."""
    most = math.floor(node.get("CPU", 0.0) / cpus + 1e-9)
    return min(most, math.floor(node.get("GPU", 0.0) / gpus + 1e-9)) if gpus else most


def _connect(ray: Any, address: str) -> None:
    host, separator, port = address.rpartition(":")
    if address not in ("auto", "local") and not (separator and host and port.isdigit()):
        raise WhenceError(f"'{address}' is no address of a Ray cluster: give HOST:PORT or auto.")
    if separator:
        try:  # Ray itself tries for two minutes, then ends the process
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except OSError:
            raise WhenceError(
                f"No Ray cluster answers at {address}: start one with `ray start --head`."
            ) from None
    try:
        with _silence_stderr():
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError:
        raise WhenceError(
            f"No Ray cluster was found by --address {address}: start one with `ray start --head`."
        ) from None
    except RuntimeError as error:
        raise WhenceError(f"The Ray cluster at {address} cannot be used: {error}.") from None


def _start(ray: Any, options: RayOptions) -> None:
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Ray counts CPUs and does not bind them: reading and writing share those of the actors.
    needed = options.cpus_per_actor * (options.actors or 1)
    with _silence_stderr():
        ray.init(
            address="local",
            num_cpus=math.ceil(max(own, needed)) + SPARE_CPUS,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )


@contextmanager
def _silence(name: str) -> Iterator[None]:
    """Keep a logger's messages, errors too, from the terminal: they come as exceptions as well."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Drop what Ray's compiled part writes to the terminal as it starts, whatever its level."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")
