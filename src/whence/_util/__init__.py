"""Small helpers that know nothing of whence's other packages."""
