"""Tables in Markdown and curves as SVG pictures, for docs/results."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

COLOURS = "#0b5d8f", "#b4550a", "#3f7d20", "#7a3b8f"
LEFT = 60


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of cells that hold no mark of it."""
    head, *lines = (f"| {' | '.join(map(str, row))} |\n" for row in (columns, *rows))
    return "".join([head, "|---" * len(columns) + "|\n", *lines])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plot:
    """Where values lie in a picture of this size."""

    width: int
    height: int
    across: Callable[[float], float]
    down: Callable[[float], float]

    def picture(
        self, levels: Mapping[float, str], ticks: Mapping[float, str], curves: Sequence[str], *, axis: str, title: str
    ) -> str:
        """The curves over a grid of `levels`, with `ticks` below."""
        right = self.width - LEFT + 20
        grid = "".join(
            f'<path d="M{LEFT} {self.down(level):.1f}H{right}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{self.down(level) + 4:.1f}" text-anchor="end">{label}</text>'
            for level, label in levels.items()
        )
        marks = "".join(
            f'<text x="{self.across(tick):.1f}" y="{self.height - 38}" text-anchor="middle">{label}</text>'
            for tick, label in ticks.items()
        )
        middle = (LEFT + right) // 2
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" font-family="sans-serif"'
            f' font-size="13"><rect width="{self.width}" height="{self.height}" fill="#fff"/>{grid}{marks}'
            f'{"".join(curves)}<text x="{middle}" y="{self.height - 12}" text-anchor="middle">{axis}</text>'
            f'<text x="{LEFT}" y="16">{title}</text></svg>\n'
        )

    def curve(self, points: Sequence[tuple[float, float]], colour: str, *, dashed: bool = False) -> str:
        places = [(self.across(x), self.down(y)) for x, y in points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places)
        dash = ' stroke-dasharray="7 4"' if dashed else ""
        return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dash}/>{dots}'

    def label(self, point: tuple[float, float], text: str, colour: str, *, below: float, anchor: str) -> str:
        """Beside a point; a curve may run behind it."""
        x, y = self.across(point[0]), self.down(point[1]) + below
        behind = f'text-anchor="{anchor}" paint-order="stroke" stroke="#fff" stroke-width="5"'
        return f'<text x="{x:.1f}" y="{y:.1f}" {behind} fill="{colour}">{text}</text>'
