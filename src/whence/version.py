"""The version of whence."""

__version__ = "0.2.0"
