# SPDX-License-Identifier: Apache-2.0
"""libaquifer through ctypes: its functions, and calls that turn its errors, and exceptions raised
in its callbacks, into exceptions here.  Nothing else of the package knows ctypes."""
from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .errors import AquiferError

LEVELS = ("error", "warning", "info", "progress", "debug")
SONAME = "libaquifer.so.0"


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("exit_status", ctypes.c_int),
                ("text", ctypes.c_char * 1024)]


_LINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_OUTPUT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_INTERRUPTED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Hooks(ctypes.Structure):
    _fields_ = [("user", ctypes.c_void_p), ("line", _LINE), ("output", _OUTPUT),
                ("interrupted", _INTERRUPTED), ("output_is_terminal", ctypes.c_int),
                ("lines_are_terminal", ctypes.c_int), ("line_columns", ctypes.c_int)]


def _candidates() -> List[str]:
    """Where the library may be, the most particular place first."""
    found = []
    if os.environ.get("AQUIFER_LIBRARY"):
        return [os.environ["AQUIFER_LIBRARY"]]
    found.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", SONAME))
    for name in (SONAME, ctypes.util.find_library("aquifer")):
        if name:
            found.append(name)
    return found


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    text, out, error = ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Error)
    handle, hooks = ctypes.c_void_p, ctypes.POINTER(_Hooks)
    for name, result, arguments in (
            ("aquifer_parse_args", ctypes.c_int,
             [ctypes.c_int, ctypes.POINTER(text), out, out, error]),
            ("aquifer_flag", ctypes.c_int, [text, text]),
            ("aquifer_run", ctypes.c_int, [text, hooks]),
            ("aquifer_open", ctypes.c_int, [out, text, hooks, error]),
            ("aquifer_submit", ctypes.c_int, [handle, text, error]),
            ("aquifer_next", ctypes.c_int, [handle, out, error]),
            ("aquifer_number", ctypes.c_uint64, [handle]),
            ("aquifer_report", ctypes.c_int, [handle, out, error]),
            ("aquifer_close", None, [handle]),
            ("aquifer_free", None, [ctypes.c_void_p]),
            ("aquifer_version", text, [])):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """The shared library, loaded once."""
    global _loaded
    with _lock:
        if _loaded is None:
            why = []
            for name in _candidates():
                try:
                    _loaded = _declare(ctypes.CDLL(name))
                    break
                except OSError as e:
                    why.append(f"{name}: {e}")
            else:
                raise ImportError(f"{SONAME} is not found: install Aquifer, or set "
                                  "AQUIFER_LIBRARY to its path (" + "; ".join(why) + ")")
    return _loaded


def version() -> str:
    """The library's version, and the commit that it was made of."""
    return str(library().aquifer_version().decode())


def _failed(error: _Error) -> AquiferError:
    return AquiferError(error.text.decode("utf-8", "replace"), error.exit_status, error.code)


def _take(lib: ctypes.CDLL, p: ctypes.c_void_p) -> Optional[str]:
    """A string of the library's, which is freed."""
    if not p.value:
        return None
    try:
        return ctypes.string_at(p.value).decode("utf-8")
    finally:
        lib.aquifer_free(p)


class Hooks:
    """Callbacks for one or more calls.  What they raise, and Ctrl-C, makes the library stop at its
    next safe point, and is raised again behind the call."""

    def __init__(self, on_message: Callable[[str, str], None],
                 on_output: Optional[Callable[[bytes], None]] = None) -> None:
        self._pending: Optional[BaseException] = None
        self._on_message, self._on_output = on_message, on_output
        self._hooks = _Hooks(None, _LINE(self._line), _OUTPUT(self._output),
                             _INTERRUPTED(self._interrupted), 0, 0, 0)

    @property
    def pointer(self) -> Any:
        return ctypes.byref(self._hooks)

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as e:  # whatever it is, C code cannot hand it on
            self._keep(e)

    def _keep(self, e: Optional[BaseException]) -> None:
        if self._pending is None:
            self._pending = e

    def _line(self, user: Any, level: int, text: bytes) -> None:
        self._guard(lambda: self._on_message(LEVELS[level], text.decode("utf-8", "replace")))

    def _output(self, user: Any, data: int, count: int) -> None:
        if self._on_output:
            on_output = self._on_output
            self._guard(lambda: on_output(ctypes.string_at(data, count)))

    def _interrupted(self, user: Any) -> int:
        return int(self._pending is not None)

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """Calls the library.  A signal's handler runs when Python code does: that of the callbacks,
        and before their first statement.  What it raises there comes out of sys.unraisablehook."""
        before = sys.unraisablehook

        def unraisable(what: Any) -> None:
            if what.object in (self._line, self._output, self._interrupted):
                self._keep(what.exc_value)
            else:
                before(what)

        sys.unraisablehook = unraisable
        try:
            status = function(*arguments)
        finally:
            sys.unraisablehook = before
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending
        return status


def parse_args(words: Sequence[str]) -> Tuple[Optional[str], Optional[str]]:
    """(options as JSON, None) of command-line words, or (None, the text that they ask for)."""
    lib = library()
    args = (ctypes.c_char_p * (len(words) + 1))(*[os.fsencode(w) for w in words], None)
    options, text, error = ctypes.c_void_p(), ctypes.c_void_p(), _Error()
    if lib.aquifer_parse_args(len(words), args, ctypes.byref(options), ctypes.byref(text),
                              ctypes.byref(error)) < 0:
        raise _failed(error)
    return _take(lib, options), _take(lib, text)


def run(options: str, hooks: Hooks) -> int:
    return hooks.call(library().aquifer_run, options.encode(), hooks.pointer)


class Session:
    """One open engine: aquifer_open to aquifer_close."""

    def __init__(self, options: str, hooks: Hooks) -> None:
        self._lib, self._hooks, self._handle = library(), hooks, ctypes.c_void_p()
        self._closed = False
        self._call(self._lib.aquifer_open, ctypes.byref(self._handle), options.encode(),
                   hooks.pointer)

    def _call(self, function: Any, *arguments: Any) -> None:
        error = _Error()
        if self._closed:
            raise RuntimeError("the engine was closed")
        if self._hooks.call(function, *arguments, ctypes.byref(error)) < 0:
            raise _failed(error)

    def submit(self, record: str) -> None:
        self._call(self._lib.aquifer_submit, self._handle, record.encode())

    def next(self) -> Optional[str]:
        line = ctypes.c_void_p()
        self._call(self._lib.aquifer_next, self._handle, ctypes.byref(line))
        return _take(self._lib, line)

    def number(self) -> int:
        """Whose result `next` gave last: how many records were submitted before it."""
        return int(self._lib.aquifer_number(self._handle))

    def report(self) -> str:
        text = ctypes.c_void_p()
        self._call(self._lib.aquifer_report, self._handle, ctypes.byref(text))
        return _take(self._lib, text) or ""

    def close(self) -> None:
        if not self._closed and self._handle.value:
            self._lib.aquifer_close(self._handle)
        self._closed = True


def to_stderr(level: str, text: str) -> None:
    """Errors and warnings, as the program shows them."""
    if level in ("error", "warning"):
        print(f"aquifer: {level}: {text}", file=sys.stderr)
