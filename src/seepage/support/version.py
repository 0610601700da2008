"""The installed version, which is set from the git tag when the package is built."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("seepage")
except PackageNotFoundError:  # the source is on the path, but nothing was installed
    __version__ = "0+unknown"
