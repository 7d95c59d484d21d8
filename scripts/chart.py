#!/usr/bin/env python3
"""Draws a bar chart as SVG from a benchmark's table.

In: lines `LABEL<tab>MEDIAN<tab>LOWEST<tab>HIGHEST` on stdin, a title and a unit as arguments. Out: SVG on stdout, a bar
for each line with its spread.
"""
import sys
from html import escape

TITLE, UNIT = sys.argv[1], sys.argv[2]
rows = [line.rstrip("\n").split("\t") for line in sys.stdin if line.strip()]
top = max(float(row[3]) for row in rows)
LEFT, WIDTH, ROW, HEAD = 230, 420, 34, 44
height = HEAD + ROW * len(rows) + 12
print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 130}" height="{height}" '
      'font-family="sans-serif" font-size="14">')
print('<rect width="100%" height="100%" fill="#ffffff"/>')
print(f'<text x="12" y="24" font-weight="bold">{escape(TITLE)}</text>')
for index, (label, median, low, high) in enumerate(rows):
    y = HEAD + index * ROW
    at = lambda value: LEFT + WIDTH * float(value) / top
    colour = "#2b6cb0" if label.startswith("haul") else "#a0aec0"
    print(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(label)}</text>')
    print(f'<rect x="{LEFT}" y="{y}" width="{at(median) - LEFT:.1f}" height="22" fill="{colour}"/>')
    print(f'<path d="M{at(low):.1f} {y + 11}H{at(high):.1f}" stroke="#1a202c" stroke-width="2"/>')
    print(f'<text x="{at(high) + 8:.1f}" y="{y + 16}">{float(median):,.0f} {escape(UNIT)}</text>')
print("</svg>")
