"""The project's schemas, for tests of the harness, which itself cannot use them."""

import json
from pathlib import Path

import jsonschema
import referencing

SCHEMAS = {
    path.stem: json.loads(path.read_text()) for path in (Path(__file__).parents[2] / "spt/schemas").glob("*.json")
}
REGISTRY = referencing.Registry().with_resources(
    (f"{name}.json", referencing.Resource.from_contents(schema)) for name, schema in SCHEMAS.items()
)


def validator(name, pointer=""):
    """A validator for the schema `name`, or for a part of it."""
    return jsonschema.Draft202012Validator({"$ref": f"{name}.json{pointer}"}, registry=REGISTRY)
