"""Samples, methods and rows, for tests of protocols."""

from whence import datasets
from whence.benchmark import parse_methods


def read_samples(path, count=None, **options):
    dataset = datasets.load(path, **options)
    return [dataset.read(name) for name in dataset.list_names()[:count]]


def choose_one(text):
    return parse_methods(text)[0]


def judge(protocol, loaded, samples, method):
    """Rows of samples, prepared as a run does it."""
    prepared = [protocol.prepare(loaded, sample) for sample in samples]
    return protocol.compute_rows(loaded, prepared, method)
