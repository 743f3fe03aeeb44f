"""Explanations in Captum's form, for its metrics and for scripts that are written for it."""

from whence.captum.attribution import WhenceAttribution

__all__ = ["WhenceAttribution"]
