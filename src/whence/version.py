"""The version of whence."""

__version__ = "0.1.0"
