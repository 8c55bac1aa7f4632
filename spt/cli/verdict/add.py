"""spt verdict add"""

from pathlib import Path

import click


@click.command()
@click.argument("samples", type=click.Path(path_type=Path))
@click.option(
    "--what", type=click.Choice(["timing", "forcing", "final"]), default="timing", show_default=True, help="Of what."
)
@click.option("--reference", type=click.Path(path_type=Path), metavar="SAMPLES", help="What `calibrate` measured.")
@click.option("--deployment", "file", metavar="FILE", help="What was run on; the nearest deployment.yaml by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON on standard output.")
@click.pass_context
def add(ctx: click.Context, samples: Path, what: str, reference: Path | None, file: str | None, as_json: bool) -> None:
    """Judge samples that were measured elsewhere, and put the verdict into the ledger

    A key that has its verdict keeps it, and the secret of a final is revealed with its own.  Exit code 0 is promote or
    accept, and 1 any other answer.

    \b
    Example:
      spt verdict add race/out/samples.jsonl
      spt verdict add forced.jsonl --what forcing --reference calibration.jsonl
      spt verdict add last/out/samples.jsonl --what final
    """
    from spt.campaign import finish
    from spt.cli.judgement import show_final, show_verdict
    from spt.cli.judging import chosen_deployment
    from spt.cli.output import print_json
    from spt.errors import Usage
    from spt.final import finish_final
    from spt.ratio import figure_of
    from spt.verdicts import FINAL, Ledger

    if reference is not None and what != "forcing":
        raise Usage(f"--reference is for forcing, not for {what}", "leave it out, or say --what forcing")
    ledger = Ledger.find(Path())
    if what == FINAL:
        held = finish_final(ledger, chosen_deployment(file), samples)
        assert held.verdict is not None  # a final ends with one
        if as_json:
            print_json(held.record())
        else:
            show_final(ledger, held)
        ctx.exit(0 if held.verdict["answer"] == "accept" else 1)
    verdict = finish(ledger, chosen_deployment(file), what, None, samples, reference)
    figure = figure_of(ledger, verdict) if what == "timing" else None
    if as_json:
        print_json(verdict)
    else:
        show_verdict(verdict, figure)
    ctx.exit(0 if verdict["answer"] in ("promote", "accept") else 1)
