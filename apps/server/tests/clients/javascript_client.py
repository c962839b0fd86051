"""What the openai package of JavaScript makes of the server's answers: chat.mjs, against a model that calls tools.

    NODE_PATH=FOLDER python javascript_client.py PROGRAM
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from program import Served, tool_model

CLIENT = Path(__file__).with_name("chat.mjs")


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        with Served(program, tool_model(Path(folder) / "tools"), "tools") as served:
            subprocess.run(["node", str(CLIENT), served.url], check=True, timeout=120)


if __name__ == "__main__":
    main(sys.argv[1])
