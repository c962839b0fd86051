"""Goes on in another process: snapshot.py MODEL save FILE, then snapshot.py MODEL restore FILE."""

import sys
from pathlib import Path

import nestling

model_path, what, file = sys.argv[1:]
model = nestling.open(model_path)
if what == "save":
    session = model.session()
    print(session.generate("The captain said", temperature=0, max_tokens=16).text())
    Path(file).write_bytes(session.snapshot())
else:
    session = model.restore(Path(file).read_bytes())
    print(session.generate(temperature=0, max_tokens=16).text())
