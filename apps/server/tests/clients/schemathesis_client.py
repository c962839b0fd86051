"""The server, asked by schemathesis for all that `/openapi.json` describes, and for what it excludes.

    python schemathesis_client.py PROGRAM [CASES]

No answer may be one of the server's own faults, have a status or a shape that is not described, or accept what the
description excludes. Answers are kept short, and requests name the model that is served: most would end there.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from program import Served, tool_model

NAME = "tools"
# Bodies that are wrong may be too long besides.
CONFIG = """
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 408, 409, 413, 415, 431, "5xx"]
"""
CHECKS = [
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method",
]
# Where the length of an answer stands, by body.
LENGTHS = {
    "Chat": "max_tokens", "Completion": "max_tokens", "Response": "max_output_tokens", "Messages": "max_tokens",
    "OllamaOptions": "num_predict",
}


def narrowed(document):
    """The description with the served model's name and short answers."""
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        properties = schema.get("properties", {})
        if "additionalProperties" in schema and "model" in properties:
            may_lack = "null" in properties["model"]["type"]
            properties["model"] = {"enum": [NAME, None] if may_lack else [NAME]}
        if "n" in properties:
            properties["n"]["maximum"] = 2
    for name, field in LENGTHS.items():
        length = schemas[name]["properties"][field]
        length.get("anyOf", [length])[0]["maximum"] = 4
    return document


def main(program, cases="1000"):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        with Served(program, tool_model(folder / "model"), NAME) as served:
            base = served.url.removesuffix("/v1")
            with urllib.request.urlopen(f"{base}/openapi.json") as reply:
                document = narrowed(json.load(reply))
            (folder / "schemathesis.toml").write_text(CONFIG)
            described = folder / "openapi.json"
            described.write_text(json.dumps(document))
            each = max(1, int(cases) // len(document["paths"]))
            done = subprocess.run(
                [
                    Path(sys.executable).parent / "st", "--no-color", "run", described, "--url", base, "--seed", "1",
                    "--max-examples", str(each), "--phases", "coverage,fuzzing", "--workers", "2", "--checks",
                    ",".join(CHECKS), "--generation-database", "none", "--request-timeout", "60", "--continue-on-failure",
                    "--suppress-health-check", "all", "--warnings", "off", "--no-shrink",
                ],
                cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
    said = done.stdout.strip().splitlines()
    if done.returncode:
        print("\n".join(said[-400:]))
        sys.exit(f"schemathesis: {said[-1] if said else done.returncode}")
    print("schemathesis:", next(line.strip() for line in said if " generated" in line))


if __name__ == "__main__":
    main(*sys.argv[1:])
