from __future__ import annotations

import pytest
import torch

from snncompress.data.task import Task

CLASSES, NUMBER = Task.CLASSIFICATION, Task.REGRESSION


def test_one_float_a_sample_is_a_number_to_predict() -> None:
    assert Task.of(torch.zeros(5)) is Task.of(torch.zeros(5, 1)) is NUMBER
    assert Task.of(torch.zeros(5, dtype=torch.float64)) is NUMBER
    assert Task.of(torch.zeros(5, dtype=torch.int64)) is CLASSES
    assert Task.of(torch.zeros(5, 3)) is CLASSES  # probabilities


def test_words() -> None:
    assert CLASSES.word(1.234) == "error 1.23%"
    assert CLASSES.describe(1.234) == "error 1.23%, accuracy 98.77%"
    assert NUMBER.word(0.65125) == NUMBER.describe(0.65125) == "RMSE 0.6512"
    assert [NUMBER.show(value) for value in (10.1, 1234.4, 0.0, 98765.4)] == ["10.10", "1234", "0.000", "98,765"]
    assert (CLASSES.axis(), NUMBER.axis()) == ("Error (%)", "RMSE")
    assert (CLASSES.axis("test"), NUMBER.axis("test")) == ("Test error (%)", "Test RMSE")


def test_errors() -> None:
    assert CLASSES.error(0.25) == 25
    assert NUMBER.error(0.25) == 0.5
    assert CLASSES.entries(3.0) == {"error": 3.0}
    assert NUMBER.entries(3.0, "validation_") == {"validation_error": 3.0, "validation_rmse": 3.0}


@pytest.mark.parametrize("task", Task)
def test_its_name_is_what_a_run_remembers(task: Task) -> None:
    assert Task(str(task)) is task
