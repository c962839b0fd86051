"""An answer as a value of a type: form.py MODEL."""

import sys
from dataclasses import dataclass
from typing import Literal

import nestling


@dataclass
class Ship:
    name: Literal["Albatross", "Swan"]
    masts: Literal[1, 2, 3]
    is_lost: bool


model = nestling.open(sys.argv[1])
ship = model.chat().ask_for(Ship, "Tell me of a ship.", temperature=0)
print(ship)
sys.exit(0 if ship.masts in (1, 2, 3) else 1)
