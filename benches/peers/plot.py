#!/usr/bin/env python3
"""Draw results of compare.py as bars, one group for each test: plot.py RESULTS.json... > OUT.svg"""
import json
import statistics
import sys
from html import escape

from compare import name_of

COLORS = ["#9aa5b1", "#627d98", "#d64545", "#e9b949", "#3e9b6e"]
WIDTH, BAR, GAP, LEFT, RIGHT = 860, 16, 14, 250, 110


def speeds(paths):
    """Median speed and spread by title of the test and by engine, in the order of the files."""
    found = {}
    for path in paths:
        title = path.rsplit("/", 1)[-1].removesuffix(".json")
        with open(path) as file:
            for row in json.load(file):
                for test in row.get("tests", []):
                    key = f"{title}: {name_of(test)}"
                    found.setdefault(key, {}).setdefault(row["engine"], []).append(test["avg_ts"])
    return found


def main():
    found = speeds(sys.argv[1:])
    engines = list(dict.fromkeys(engine for tests in found.values() for engine in tests))
    out, y = [], 30 + 18 * len(engines)
    for title, by_engine in found.items():
        medians = {engine: statistics.median(values) for engine, values in by_engine.items()}
        scale = (WIDTH - LEFT - RIGHT) / max(medians.values())
        middle = y + BAR * len(medians) / 2 + 4
        out.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(title)}</text>')
        for engine, median in medians.items():
            color, values = COLORS[engines.index(engine) % len(COLORS)], by_engine[engine]
            out.append(f'<rect x="{LEFT}" y="{y}" width="{median * scale:.1f}" height="{BAR - 3}" '
                       f'fill="{color}"/>')
            low, high, line = (LEFT + min(values) * scale, LEFT + max(values) * scale,
                               y + (BAR - 3) / 2)
            out.append(f'<path d="M{low:.1f} {line} H{high:.1f}" stroke="#000"/>')
            out.append(f'<text x="{LEFT + median * scale + 8:.1f}" y="{y + 11}">{median:.1f}</text>')
            y += BAR
        y += GAP
    legend = [f'<rect x="{LEFT}" y="{10 + 18 * i}" width="12" height="12" '
              f'fill="{COLORS[i % len(COLORS)]}"/><text x="{LEFT + 18}" y="{20 + 18 * i}">'
              f'{escape(engine)}, tokens/s, median; the line from lowest to highest</text>'
              for i, engine in enumerate(engines)]
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}" '
          f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
          + "".join(legend + out) + "</svg>")


if __name__ == "__main__":
    main()
