"""A run's loss curve as a small SVG, and a table of it in Markdown.

python bench/loss_curve.py RUN_FOLDER curve.svg
"""

import sys
from pathlib import Path

from ridgeline.records.store import write_atomically
from ridgeline.records.training_run import read_log

WIDTH, HEIGHT, EDGE = 640, 300, 44


def main() -> None:
    lines = read_log(Path(sys.argv[1]))
    held = [line for line in lines if line.validation_loss is not None]
    high = max(line.loss for line in lines)
    low = min(line.loss for line in lines) * 0.9

    def at(step: int, loss: float) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * step / lines[-1].step
        y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (loss - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    curve = " ".join(at(line.step, line.loss) for line in lines)
    dots = "".join(
        '<circle cx="{}" cy="{}" r="4" fill="#d9480f"/>'.format(
            *at(line.step, line.validation_loss).split(",")
        )
        for line in held
    )
    marks = "".join(
        f'<text x="6" y="{float(at(0, value).split(",")[1]) + 4:.0f}">{value}</text>'
        for value in range(int(low) + 1, int(high) + 1)
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>'
        f'<polyline points="{curve}" fill="none" stroke="#1971c2" stroke-width="1.5"/>{dots}{marks}'
        f'<text x="{WIDTH - EDGE}" y="{HEIGHT - 12}" text-anchor="end">step {lines[-1].step:,}; '
        f"line: training loss, dots: held out, nats per token</text></svg>\n"
    )
    write_atomically(Path(sys.argv[2]), svg.encode())
    print("| step | loss | held out | learning rate | tokens/s |\n|---|---|---|---|---|")
    for line in lines[:: max(1, len(lines) // 10)] + held:
        shown = "" if line.validation_loss is None else f"{line.validation_loss:.3f}"
        print(
            f"| {line.step:,} | {line.loss:.3f} | {shown} | {line.learning_rate:.4f} "
            f"| {line.tokens_per_second:,.0f} |"
        )


if __name__ == "__main__":
    main()
