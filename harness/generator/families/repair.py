"""Broken programs: find the fault, explain it, mend it."""

from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

# Each with one fault; <R> is a record, <F> a field of it and <N> a number.
_BROKEN = (
    "def total_<F>(<R>_list):\n    total = 0\n    for <R> in <R>_list:\n        total = <R>['<F>']\n    return total",
    "def largest_<F>(<R>_list):\n    best = 0\n    for <R> in <R>_list:\n        if <R>['<F>'] < best:\n            best = <R>['<F>']\n"
    "    return best",
    "def count_above(<R>_list):\n    count = 0\n    for <R> in <R>_list:\n        if <R>['<F>'] > <N>:\n            count + 1\n"
    "    return count",
    "def first_<R>(<R>_list):\n    for index in range(1, len(<R>_list)):\n        if <R>_list[index]['<F>'] == <N>:\n"
    "            return <R>_list[index]\n    return None",
    "def mean_<F>(<R>_list):\n    return sum(<R>['<F>'] for <R> in <R>_list) / (len(<R>_list) - 1)",
    "def add_<R>(<R>, <R>_list=[]):\n    <R>_list.append(<R>)\n    return <R>_list",
    "function total_<F>(<R>_list) {\n  let total;\n  for (const <R> of <R>_list) {\n    total += <R>.<F>;\n  }\n  return total;\n}",
    "function last_<R>(<R>_list) {\n  return <R>_list[<R>_list.length];\n}",
    "function is_<R>_ready(<R>) {\n  if (<R>.<F> = <N>) {\n    return true;\n  }\n  return false;\n}",
    "int sum_<F>(int *<F>, int n) {\n    int sum = 0;\n    for (int i = 0; i <= n; i++) {\n        sum += <F>[i];\n    }\n"
    "    return sum;\n}",
    "int <F>_in_<N>_steps(int <F>) {\n    int step;\n    while (step < <N>) {\n        <F> = <F> * 2;\n        step++;\n    }\n"
    "    return <F>;\n}",
    "def remove_small_<R>(<R>_list):\n    for <R> in <R>_list:\n        if <R>['<F>'] < <N>:\n            <R>_list.remove(<R>)\n"
    "    return <R>_list",
    "def <F>_label(<R>):\n    if <R>['<F>'] > <N>:\n        return 'low'\n    return 'high'",
    "def same_<F>(left_<R>, right_<R>):\n    return left_<R>['<F>'] is right_<R>['<F>'] and left_<R> is not right_<R>",
    "func average_<F>(values []int) int {\n    total := 0\n    for i := range values {\n        total += i\n    }\n"
    "    return total / len(values)\n}",
    "def page_of_<R>(<R>_list, page):\n    start = page * <N>\n    return <R>_list[start:<N>]",
)
_ASK = (
    "This code does not do what its name says. What is wrong?",
    "Find the bug, and show the corrected line.",
    "{given} says that the result is wrong. Why?",
    "Please repair this. Change as little as you can.",
    "A test with {n} {records} fails. Where is the mistake?",
)
_MANY = (
    "Each of these functions has one fault. Name them, one line each.",
    "{given} wrote this file. Which function would you mend first, and why?",
    "Which of these functions fails on an empty list?",
)
_FOLLOW = (
    "Which input shows the fault best? {brief}",
    "Show only the line that must change.",
    "Here is the next one. What is wrong with it? {brief}\n\n",
    "{new_given} suggests a longer name for the function. Suggest one.",
    "And this one? Name the fault in one sentence.\n\n",
    "How would a test with {new_nnn} as its input look? One line.",
    "Does the same mistake happen in {new_language}? {brief}",
    "Is this one right? Answer yes or no, with a short reason.\n\n",
    "Write a commit message for the repair, of at most {new_nn} words.",
    "What would {a_trade} who learns to program find hard about it? {brief}",
)


def _code(scene: Scene) -> str:
    code = scene.next_of(_BROKEN)
    for slot, kind in (("<R>", "record"), ("<F>", "field"), ("<N>", "nn")):
        code = code.replace(slot, scene.fresh(kind))
    return code


def _opening(scene: Scene) -> str:
    scene.renew("given", "record", "n")
    functions = [_code(scene) for _ in range(max(1, min(scene.size_tok // 60, 16)))]
    return scene.deal(_ASK if len(functions) == 1 else _MANY) + "\n\n" + "\n\n".join(functions)


def _follow(scene: Scene) -> str:
    turn = scene.deal(_FOLLOW)
    return turn + _code(scene) if turn.endswith("\n") else turn


FAMILY = Family("repair", "the broken program", _opening, _follow)
