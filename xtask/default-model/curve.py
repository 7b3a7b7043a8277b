"""Draws the loss over the tokens seen, on a logarithmic axis: python curve.py metrics.jsonl training.json loss.svg

metrics.jsonl is mlx-train's; training.json gets what is drawn, a point for each 50 steps.
"""

import json
import math
import sys

EVERY = 50

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 50, 16, 16, 40


def points(metrics):
    curve, losses, seen, seconds = [], [], 0, 0.0
    for event in map(json.loads, open(metrics)):
        if event["event"] == "step":
            losses.append(event["loss"])
            seen += event["tokens"]
            seconds += event["seconds"]
            if len(losses) == EVERY:
                curve.append({"step": event["step"], "loss": round(sum(losses) / EVERY, 4), "tokens": seen,
                              "seconds": round(seconds, 1)})
                losses = []
    return curve


def main():
    curve = points(sys.argv[1])
    text = json.dumps({"curve": curve}).replace('{"step"', '\n{"step"')
    open(sys.argv[2], "w").write(text + "\n")
    most = curve[-1]["tokens"]
    low = math.floor(math.log10(min(point["loss"] for point in curve)) * 4) / 4
    high = math.log10(max(point["loss"] for point in curve))

    def x(tokens):
        return LEFT + tokens / most * (WIDTH - LEFT - RIGHT)

    def y(loss):
        return TOP + (high - math.log10(loss)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for loss in (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5):
        if low <= math.log10(loss) <= high:
            parts.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                         f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>')
    for million in range(0, most // 10**6 + 1):
        parts.append(f'<text x="{x(million * 1e6):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{million}</text>')
    line = " ".join(f"{x(point['tokens']):.1f},{y(point['loss']):.1f}" for point in curve)
    parts += [f'<polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>',
              f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">million tokens</text>',
              f'<text x="14" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})">training loss</text>', "</svg>"]
    open(sys.argv[3], "w").write("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
