"""Draws a terminal's screen as an SVG picture: terminal_picture.py <SCREEN >PICTURE.svg

The screen is text with ANSI attributes, such as `tmux capture-pane -e -p` prints it. README's picture of a chat:

    tmux new-session -d -s chat -x 88 -y 16 nestling chat -n 90 --seed 3
    tmux send-keys -t chat 'Tell me of a ship that left in the night.' Enter
    tmux capture-pane -t chat -e -p | python3 scripts/terminal_picture.py >docs/terminal.svg
"""

import re
import sys
from html import escape

WIDTH, HEIGHT, MARGIN = 8.4, 19, 16
TEXT, DIM, BACKGROUND = "#d8dee9", "#8b95a7", "#1f2430"
COLORS = ["#4c566a", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"]
ATTRIBUTES = re.compile(r"\x1b\[([0-9;]*)m")


def runs(line: str, style: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Splits a line into runs of one style; `style` carries over to the next line."""
    found = []
    parts = ATTRIBUTES.split(line)
    for index, part in enumerate(parts):
        if index % 2 == 0:
            if part:
                found.append((part, dict(style)))
            continue
        for code in [int(code or 0) for code in part.split(";")]:
            if code == 0:
                style.clear()
            elif code == 1:
                style["font-weight"] = "bold"
            elif code == 2:
                style["fill"] = DIM
            elif code == 39:
                style.pop("fill", None)
            elif 30 <= code <= 37:
                style["fill"] = COLORS[code - 30]
            elif 90 <= code <= 97:
                style["fill"] = COLORS[code - 90]
    return found


def picture(screen: str) -> str:
    lines = screen.rstrip("\n").split("\n")
    columns = max(len(ATTRIBUTES.sub("", line)) for line in lines)
    width, height = 2 * MARGIN + columns * WIDTH, 2 * MARGIN + len(lines) * HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="{TEXT}">',
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
    ]
    style: dict[str, str] = {}
    for number, line in enumerate(lines):
        y = MARGIN + (number + 0.75) * HEIGHT
        column = 0
        for text, attributes in runs(line, style):
            marks = "".join(f' {name}="{value}"' for name, value in attributes.items())
            x = MARGIN + column * WIDTH
            length = len(text) * WIDTH
            column += len(text)
            if text.strip():
                out.append(
                    f'<text x="{x:.1f}" y="{y:.1f}" textLength="{length:.1f}" xml:space="preserve"{marks}>'
                    f"{escape(text)}</text>"
                )
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(picture(sys.stdin.read()))
