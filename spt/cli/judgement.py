"""A verdict as people read it, a line a fact."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spt.cli.output import data, table
from spt.cli.progress import LEAST_UNITS

if TYPE_CHECKING:
    from spt.ratio import RawRatio, Speedup
    from spt.verdicts import Held, Ledger

__all__ = ["show_final", "show_verdict"]

DASH = "-"
SMOKE = "smoke: so few tokens can only reject; this accepts nothing"


def show_verdict(verdict: Mapping[str, Any], figure: "RawRatio | Speedup | None") -> None:
    """Prints a timing or forcing verdict; `figure` is what may be said of the gain."""
    data(f"{verdict['answer']}: {verdict['reason']}")
    if verdict["what"] == "timing":
        for line in _timing(verdict, figure):
            data(line)
    else:
        _show_forcing(verdict)
    data(f"key {verdict['key'][:12]}, samples {verdict['samples'][:12]}, {verdict['date']}, {_machine(verdict)}")


def show_final(ledger: "Ledger", held: "Held") -> None:
    """Prints the verdict of a final, with what was measured before it of the same system."""
    from spt.final import earlier_finals
    from spt.ratio import figure_of
    from spt.seal import check_commitment, seal_named

    verdict = held.verdict
    assert verdict is not None and held.seal is not None  # a final's
    sealed = seal_named(ledger, held.seal)
    check_commitment(sealed)
    data(f"{verdict['answer']}: {verdict['reason']}")
    if held.again is not None:
        data(f"again: {held.again}")
        for words in earlier_finals(ledger, verdict["of"]["a"], verdict["of"]["deployment"], held.seal):
            data(f"another final of this system: {words}")
    for phase, words in (("stock", "against the other arm"), ("ar", "against autoregressive decoding")):
        for line in _comparison(words, verdict["timing"][phase], figure_of(ledger, verdict, phase)):
            data(line)
    for row in verdict["sorts"]:
        data(
            f"{row['sort']}: {row['answers']} answers, {row['tokens']} tokens, looped {row['looped_tok']}, "
            f"tau {_number(row['tau'])}"
        )
    _show_forcing(verdict)
    data(f"seal {held.seal}, committed {sealed.date}, commitment {sealed.commitment[:12]} checked")
    data(f"key {verdict['key'][:12]}, samples {verdict['samples'][:12]}, {verdict['date']}, {_machine(verdict)}")


def _comparison(words: str, figure: Mapping[str, Any], said: object) -> Iterator[str]:
    """One of a final's two: nothing is promoted on it."""
    if said is None:
        yield f"{words}: not measured"
        return
    # An interval of two units says nothing.
    ends = figure["interval"] if figure["units"] >= LEAST_UNITS else None
    yield f"{words}: {said}, gain {_signed(figure['gain'])}, {_between(ends)} (each end at 99.5 %)"
    yield (
        f"  {figure['units']} units, spread {_share(figure['spread'])}, "
        f"between requests {_between(figure['between'])}, "
        f"tau {_number(figure['tau']['a'])} and {_number(figure['tau']['b'])}, {figure['diverged']} requests diverged"
    )


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"


def _machine(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['of']['card']['gpu'] or 'cpu'}, sandbox {verdict.get('sandbox') or 'unknown'}"


def _timing(verdict: Mapping[str, Any], figure: object) -> Iterator[str]:
    if figure is not None:
        yield f"{figure}: gain {_signed(verdict['gain'])}, {_between(verdict['interval'])} (each end at 99.5 %)"
    noise, spread = _share(verdict["noise"]), _share(verdict["spread"])
    yield f"noise {noise}, own spread {spread}, threshold {_share(verdict['threshold'])}"
    if (published := verdict["published"]) is not None:
        yield f"published rule, one bound at 95 %: {published['answer']}, lower bound {_signed(published['lower'])}"
    if verdict["between"] is not None:
        yield f"between requests {_between(verdict['between'])}"
    if verdict["gain_same"] is not None:
        yield f"gain without divergence {_signed(verdict['gain_same'])}; {verdict['diverged']} requests diverged"
    yield f"units {verdict['units']}, look {verdict['look']}, voids {verdict['voids']}, tokens {verdict['tokens']}"


def _show_forcing(verdict: Mapping[str, Any]) -> None:
    if verdict["answer"] == "smoke":
        data(SMOKE)
    data(
        f"mismatch {_share(verdict['mismatch'])}, stock's own {_share(verdict['stock_mismatch'])}, "
        f"excess {_excess(verdict['excess'])}"
    )
    data(
        f"tokens {verdict['tokens']} in {verdict['sessions']} sessions, "
        + (f"look {verdict['look']}, " if "look" in verdict else "")
        + f"looped {verdict['looped_tok']}"
        + (f", still needed {needed}" if (needed := verdict.get("needed_tok")) else "")
    )
    for line in _which(verdict):
        data(line)
    if verdict["buckets"]:
        columns = ("where", "from", "to", "tokens", "sessions", "mismatch", "stock's", "excess", "")
        table(columns, [_bucket(bucket) for bucket in verdict["buckets"]])
    for word in verdict["uncovered"]:
        data(f"not covered: {word}")
    for number, test in enumerate(verdict["event_tests"], 1):
        data(
            f"events, run {number}: {test['events']} in {test['tokens']} tokens, stock's own {test['stock_events']} in "
            f"{test['stock_tokens']}, p {test['p']:.3g}"
        )
    for event in verdict["audit"]:
        data(_event(event))
    for request in verdict["malformed"]:
        data(f"malformed: request '{request}'")


def _which(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Which tokens were forced."""
    if verdict["what"] == "final":
        yield "forced: all that it said, timed or not"
    elif verdict.get("timed") is None:
        yield "forced: none of the tokens that were timed; a speedup needs them, once `spt time A B` has confirmed"
    else:
        rest = verdict["tokens"] + verdict["looped_tok"] - verdict["timed_tok"]
        yield f"forced: the {verdict['timed_tok']} tokens that were timed, samples {verdict['timed'][:12]}, {rest} more"
    if (compared := verdict.get("compared_tok", verdict["tokens"])) < verdict["tokens"]:
        yield f"compared: {compared} of {verdict['tokens']} tokens; at the positions of the others stock has none"


def _bucket(bucket: Mapping[str, Any]) -> tuple[str, ...]:
    word = "rejects" if bucket["rejects"] else "" if bucket["covered"] else "not covered"
    if bucket.get("events"):
        counts = "+".join(str(test["events"]) for test in bucket["events"])
        word = f"{word}{', ' if word else ''}events {counts}, stock's {bucket['events'][0]['stock_events']}"
    high = DASH if bucket["high"] is None else str(bucket["high"])
    numbers = (str(bucket["low"]), high, str(bucket["tokens"]), str(bucket["sessions"]))
    rates = (_share(bucket["mismatch"]), _share(bucket["stock_mismatch"]), _excess(bucket["excess"]))
    return (bucket["axis"], *numbers, *rates, word)


def _event(event: Mapping[str, Any]) -> str:
    words = ""
    if "before" in event:
        words = f": ...{event['before']}[{event['given_text']}], stock [{event['best_text']}]"
    return (
        f"{event['explanation'] or 'unexplained'}: request '{event['request']}' token {event['at']}, {event['given']} "
        f"for {event['best']}, margin {event['margin_logit']:.3g} with delta {event['delta_logit']:.3g}{words}"
    )


def _share(value: float | None) -> str:
    return DASH if value is None else f"{value:.2%}"


def _signed(value: float | None) -> str:
    return DASH if value is None else f"{value:+.2%}"


def _between(ends: tuple[float, float] | None) -> str:
    return DASH if ends is None else f"{ends[0]:+.2%} to {ends[1]:+.2%}"


def _excess(bounds: Mapping[str, float] | None) -> str:
    if bounds is None:
        return DASH
    value, lower, upper = (100 * bounds[name] for name in ("value", "lower", "upper"))
    return f"{value:+.2f} points ({lower:+.2f} to {upper:+.2f})"
