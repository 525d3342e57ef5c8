"""Tasks: dataset, prompt template, stop rule, references and the names of the scores."""

from spec_bench.tasks.build import build_task, with_metrics
from spec_bench.tasks.example import Example
from spec_bench.tasks.random_prompts import RandomPrompts
from spec_bench.tasks.task import Task

__all__ = ["Example", "RandomPrompts", "Task", "build_task", "with_metrics"]
