"""The command line: a skin over the library. Torch is imported inside the commands, so that ``--help`` is quick."""

from __future__ import annotations

import json
import sys
import traceback

import typer

from snncompress.errors import SnncompressError


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; a failure is one line on stderr and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Runs a command in this process and returns its exit code."""
    from snncompress.cli.app import app

    try:
        code = app(args=arguments, prog_name="snncompress", standalone_mode=False)
    except SnncompressError as error:
        return _fail(str(error), error.exit_code, arguments)
    except typer.TyperException as error:  # what Typer itself refuses: an unknown option, a missing argument
        return _fail(f"{_text(error)} (see `snncompress {_command(arguments)}--help`)", 2, arguments)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130, arguments)
    except BrokenPipeError:  # the reader of our output went away: `snncompress list models | head -1`
        sys.stderr.close()
        return 0
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int, arguments: list[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exc()
    line = " ".join(message.split())
    print(json.dumps({"failure": line}) if "--json" in arguments else f"error: {line}", file=sys.stderr)
    return code


def _text(error: Exception) -> str:
    form = getattr(error, "format_message", None)
    return str(form() if form else error).rstrip(".")


def _command(arguments: list[str]) -> str:
    return next((f"{word} " for word in arguments[:1] if not word.startswith("-")), "")
