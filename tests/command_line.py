"""`wmt` in the test's own process: what is patched and captured here, is so there."""

import contextlib
import io

import pytest

from pipeline.cli import app as cli


def wmt(*arguments: object) -> int:
    """Run a command; returns its exit status."""
    with pytest.raises(SystemExit) as ended:
        cli.app([str(argument) for argument in arguments], prog_name="wmt")
    return ended.value.code


def printed(*arguments: object) -> str:
    """Run a command that ends well; returns what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert wmt(*arguments) == 0
    return output.getvalue()


def warned(*arguments: object) -> str:
    """Run a command that ends well; returns its warnings."""
    with contextlib.redirect_stderr(io.StringIO()) as error:
        assert wmt(*arguments) == 0
    return error.getvalue()


def refused(*arguments: object) -> str:
    """Run a command that ends with an error; returns its sentence."""
    with contextlib.redirect_stderr(io.StringIO()) as error:
        assert wmt(*arguments) == 1
    (sentence,) = error.getvalue().splitlines()
    return sentence
