"""The command line: a skin over the library. Torch is imported inside the commands, so that ``--help`` is quick."""

from __future__ import annotations

import json
import os
import sys
import traceback

import typer

from snncompress.errors import SnncompressError

INTERRUPTED = 130  # what Typer makes of a Ctrl-C


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; a failure is one line on stderr and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    code = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = _fail_by_system(error, arguments)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Runs a command in this process and returns its exit code."""
    from snncompress.cli.app import app

    arguments = arguments or ["--help"]
    try:
        code = app(args=arguments, obj=arguments, prog_name="snncompress", standalone_mode=False)
    except SnncompressError as error:
        return _fail(str(error), error.exit_code, arguments)
    except typer.TyperException as error:  # what Typer itself refuses: an unknown option, a missing argument
        text = _text(error)
        return _fail(f"{text} (see `snncompress {_command(arguments)}--help`)", 2, arguments) if text else 2
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except OSError as error:
        return _fail_by_system(error, arguments)
    except Exception as error:  # a mistake of ours, or a model that fails in a way that nobody foresaw
        text = f"{type(error).__name__}: {error}"
        return _fail(f"{text} (unexpected; --debug shows where it comes from)", 1, arguments)
    if code == INTERRUPTED:
        return _fail("interrupted; a run that had begun goes on with --resume", INTERRUPTED, arguments)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int, arguments: list[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exc()
    line = " ".join(message.split())
    print(json.dumps({"failure": line}) if "--json" in arguments else f"error: {line}", file=sys.stderr)
    return code


def _fail_by_system(error: OSError, arguments: list[str]) -> int:
    if isinstance(error, BrokenPipeError):  # the reader of our output went away: `snncompress list models | head -1`
        return 0
    where = f" ({error.filename})" if error.filename else ""
    return _fail(f"{error.strerror or error}{where}; check the disk and its permissions", 1, arguments)


def _text(error: Exception) -> str:
    form = getattr(error, "format_message", None)
    return str(form() if form else error).rstrip(".")


def _command(arguments: list[str]) -> str:
    from snncompress.cli.app import app

    groups = {group.name: group.typer_instance for group in app.registered_groups}
    group = groups.get(arguments[0]) if arguments else None
    if group is None:
        return _named(arguments[:1], app)
    return f"{arguments[0]} {_named(arguments[1:2], group)}"


def _named(words: list[str], among: typer.Typer) -> str:
    names = [command.name for command in among.registered_commands]
    return "".join(f"{word} " for word in words if word in names)
