"""Broken programs: find the fault, explain it, mend it."""

from harness.generator.family import Family
from harness.generator.scene import Scene

__all__ = ["FAMILY"]

# Each with one fault; <R> is a record, <F> a field of it and <N> a number.
_BROKEN = tuple(
    """
def total_<F>(<R>_list):
    total = 0
    for <R> in <R>_list:
        total = <R>['<F>']
    return total

def largest_<F>(<R>_list):
    best = 0
    for <R> in <R>_list:
        if <R>['<F>'] < best:
            best = <R>['<F>']
    return best

def count_above(<R>_list):
    count = 0
    for <R> in <R>_list:
        if <R>['<F>'] > <N>:
            count + 1
    return count

def first_<R>(<R>_list):
    for index in range(1, len(<R>_list)):
        if <R>_list[index]['<F>'] == <N>:
            return <R>_list[index]
    return None

def mean_<F>(<R>_list):
    return sum(<R>['<F>'] for <R> in <R>_list) / (len(<R>_list) - 1)

def add_<R>(<R>, <R>_list=[]):
    <R>_list.append(<R>)
    return <R>_list

function total_<F>(<R>_list) {
  let total;
  for (const <R> of <R>_list) {
    total += <R>.<F>;
  }
  return total;
}

function last_<R>(<R>_list) {
  return <R>_list[<R>_list.length];
}

function is_<R>_ready(<R>) {
  if (<R>.<F> = <N>) {
    return true;
  }
  return false;
}

int sum_<F>(int *<F>, int n) {
    int sum = 0;
    for (int i = 0; i <= n; i++) {
        sum += <F>[i];
    }
    return sum;
}

int <F>_in_<N>_steps(int <F>) {
    int step;
    while (step < <N>) {
        <F> = <F> * 2;
        step++;
    }
    return <F>;
}

def remove_small_<R>(<R>_list):
    for <R> in <R>_list:
        if <R>['<F>'] < <N>:
            <R>_list.remove(<R>)
    return <R>_list

def <F>_label(<R>):
    if <R>['<F>'] > <N>:
        return 'low'
    return 'high'

def same_<F>(left_<R>, right_<R>):
    return left_<R>['<F>'] is right_<R>['<F>'] and left_<R> is not right_<R>

func average_<F>(values []int) int {
    total := 0
    for i := range values {
        total += i
    }
    return total / len(values)
}

def page_of_<R>(<R>_list, page):
    start = page * <N>
    return <R>_list[start:<N>]
""".strip().split("\n\n")
)
_ASK = (
    "{full} wrote this. It does not do what its name says. What is wrong?",
    "Find the bug for {full}, and show the corrected line.",
    "{full} says that the result is wrong. Why?",
    "Please repair this before {full} sees it. Change as little as you can.",
    "A test of {full} with {n} {records} fails. Where is the mistake?",
)
_MANY = (
    "Each of these functions has one fault. Name them, one line each.",
    "{full} wrote this file. Which function would you mend first, and why?",
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
    scene.renew("full", "record", "n")
    functions = [_code(scene) for _ in range(max(1, min(scene.size_tok // 60, 16)))]
    return scene.deal(_ASK if len(functions) == 1 else _MANY) + "\n\n" + "\n\n".join(functions)


def _follow(scene: Scene) -> str:
    turn = scene.deal(_FOLLOW)
    return turn + _code(scene) if turn.endswith("\n") else turn


FAMILY = Family("repair", "the broken program", _opening, _follow, answer_tok=64)
