"""How kernels are compiled: Numba's options, in one place, and a cache that notices every change.

Numba caches a compiled function under the content of the one file that defines it. A change in a helper of another
file would go unnoticed, so every kernel is cached under the content of all kernel and layout files instead.
"""

import atexit
import hashlib
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import IndexDataCacheFile

from snm.system import user_id

_PACKAGE = Path(__file__).parent.parent


def _digest_of_sources():
    digest = hashlib.sha256()
    for folder in ("kernels", "layouts"):
        for path in sorted((_PACKAGE / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()


_STAMP = _digest_of_sources()


class _CacheFile(IndexDataCacheFile):
    """An index of compiled versions that is empty where other sources wrote it, and the versions.

    Two processes that compile versions of one function at the same time may give them the same file: Numba numbers
    files by the index that a process has read. So each version says which one it is.
    """

    def __init__(self, cache):
        super().__init__(cache._cache_path, cache._impl.filename_base, _STAMP)

    def _load_index(self):
        try:
            return super()._load_index()
        except Exception:  # the index names types that these sources no longer have
            return {}

    def save(self, key, data):
        super().save(key, (self._source_stamp, key, data))

    def load(self, key):
        try:
            stamp, found, data = super().load(key)
        except Exception:  # no such version, or one of other sources
            return None
        return data if (stamp, found) == (self._source_stamp, key) else None


@cache
def _temporary_cache():
    """A folder for compiled kernels where neither the package nor the home of the user can be written.

    It must be the user's own: kernels are pickled, and whoever could write them could run code here.
    """
    path = Path(tempfile.gettempdir()) / f"snm-kernels-{user_id()}"
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        own = stat.S_ISDIR(found.st_mode) and found.st_uid == user_id()
        if own and not found.st_mode & 0o077:
            return str(path)
    folder = tempfile.TemporaryDirectory(prefix="snm-kernels-")
    atexit.register(folder.cleanup)
    return folder.name


def _cached(function, options):
    """`njit` with a cache, wherever one can be written."""
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # Numba found no folder that it can write to
        before, config.CACHE_DIR = config.CACHE_DIR, _temporary_cache()
        try:
            return njit(cache=True, **options)(function)
        finally:
            config.CACHE_DIR = before


def _keep_nothing(*overload):
    """Instead of `Dispatcher._insert`."""


def _refuse(*arguments):
    raise TypeError("only kernels can call a helper: it is compiled without an entry from Python")


def _compiled(*, signatures=(), **options):
    """A decorator: `njit` with these options, cached under `_STAMP`."""
    options = {"nogil": True, "no_cfunc_wrapper": True, **options}

    def decorate(function):
        dispatcher = _cached(function, options)
        dispatcher._cache._cache_file = _CacheFile(dispatcher._cache)
        if options.get("no_cpython_wrapper"):  # calling it would jump to address 0
            dispatcher._insert, dispatcher._compile_for_args = _keep_nothing, _refuse
        for signature in signatures:
            dispatcher.compile(signature)
        if signatures:
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def is_cached(kernel: Any) -> bool:
    """Whether a compiled version of this kernel is in the cache."""
    return bool(kernel._cache._cache_file._load_index())


def kernel_for(signatures, nogil=True):
    """A kernel that is compiled for these signatures alone, when it is defined. Without `nogil` it keeps the GIL."""
    return _compiled(signatures=signatures, nogil=nogil)


kernel = _compiled()
"""A function that Python calls. It releases the GIL and runs on one thread."""

# Helpers are inlined into their callers by LLVM. Without `_nrt` Numba counts references to every array argument with
# two atomic operations a call: without them rows of M are built three times faster. Division by zero is not checked.
_HELPER = {"no_cpython_wrapper": True, "_nrt": False, "forceinline": True, "error_model": "numpy"}

helper = _compiled(**_HELPER)
"""A function that kernels call. It may not return an array that it makes."""

fused_helper = _compiled(**_HELPER, fastmath={"contract"})
"""A helper in which a product and a sum may become one operation."""

sum_helper = _compiled(**_HELPER, fastmath={"reassoc", "contract"})
"""A helper whose sums may be added in any order, which lets LLVM vectorise them."""

max_helper = _compiled(**_HELPER, fastmath={"nnan", "nsz"})
"""A helper whose numbers are never NaN, which lets LLVM vectorise maxima."""

array_helper = _compiled(no_cpython_wrapper=True, forceinline=True)
"""A helper that may return arrays."""
