"""The user's own Python files: known by their hash, executed only from the bytes that were hashed.

The hash is that of the named file alone; what it imports is not followed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from snncompress.errors import ModelError, UsageError

# Modules that users' files imported from their own folders, so that one of the same name in another
# folder is not taken for them.
_siblings: dict[str, Path] = {}


@dataclass(frozen=True)
class UserFile:
    """A Python file of the user's: where it is and what was in it when it was read."""

    path: Path
    content: bytes

    @classmethod
    def read(cls, path: Path) -> UserFile:
        """Reads the file, without executing it."""
        path = path.expanduser().resolve()
        try:
            return cls(path, path.read_bytes())
        except OSError as error:
            reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise ModelError(f"cannot read the model's file {path}: {reason}; check the path") from error

    @property
    def sha256(self) -> str:
        """The hash of the content, in hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()

    def function(self, name: str) -> Callable[..., Any]:
        """Executes the file (once a process for the same content) and returns a function or class of it."""
        module = self._module()
        function = getattr(module, name, None)
        if not callable(function):
            objects = vars(module).items()
            own = sorted(key for key, value in objects if getattr(value, "__module__", "") == module.__name__)
            raise UsageError(f"{self.path} has no function '{name}' (it defines: {', '.join(own) or 'none'})")
        return function  # type: ignore[no-any-return]

    def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Calls a function of the file; what it raises becomes a ModelError that names file and line."""
        with self._guarded():
            return function(**arguments)

    def _module(self) -> ModuleType:
        key = hashlib.sha256(str(self.path).encode() + b"\0" + self.content).hexdigest()
        name = f"snncompress_user_{key[:16]}"
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.spec_from_file_location(name, self.path)
        if spec is None:
            raise ModelError(f"{self.path} is not a Python file; give path/to/file.py:function")
        module = importlib.util.module_from_spec(spec)
        # Not spec.loader.exec_module: it would read the file again, or a stale compiled one.
        sys.modules[name] = module  # dataclasses look their module up while they are made
        try:
            with self._guarded():
                exec(compile(self.content, str(self.path), "exec"), module.__dict__)
        except ModelError:
            del sys.modules[name]
            raise
        return module

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        folder = self.path.parent
        for name in [name for name, origin in _siblings.items() if origin != folder]:
            sys.modules.pop(name, None)
            del _siblings[name]
        before = set(sys.modules)
        sys.path.insert(0, str(folder))
        try:
            yield
        except (Exception, SystemExit) as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ModelError(f"{self._place(error)}: {cause}; mend the file") from error
        finally:
            if str(folder) in sys.path:
                sys.path.remove(str(folder))
            _siblings.update({name: folder for name in set(sys.modules) - before if _is_sibling(name, folder)})

    def _place(self, error: BaseException) -> str:
        if isinstance(error, SyntaxError):
            return f"{error.filename}:{error.lineno}"
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
        return f"{self.path}:{lines[-1]}" if lines else str(self.path)


def _is_sibling(name: str, folder: Path) -> bool:
    """Whether a module is a file or package in the folder itself (not in an environment below it, nor we)."""
    file, top = getattr(sys.modules[name], "__file__", None), name.split(".")[0]
    if not file or folder not in Path(file).parents or top.startswith("snncompress"):
        return False
    return Path(file).relative_to(folder).parts[0] in (top, f"{top}.py")
