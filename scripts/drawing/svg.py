"""SVG pictures in the style of the documentation, in light and dark.

Colors are roles, such as `text` and `blue`. A style sheet in the picture gives each role its color. It has a second color
for browsers in dark mode, also if the picture is shown by an <img> element. Blue and orange differ for colorblind
readers, too.
"""

import re
from xml.sax.saxutils import escape, quoteattr

# Role: color in light mode, color in dark mode
COLORS = {
    "background": ("#ffffff", "#0d1117"),
    "box": ("#f6f8fa", "#151b23"),
    "text": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "grid": ("#e3e6ea", "#262c34"),
    "line": ("#9aa4b0", "#656d78"),
    "blue": ("#0b62c4", "#58a6ff"),
    "pale-blue": ("#d3e5f9", "#173a61"),
    "orange": ("#bc4c00", "#f0883e"),
    "pale-orange": ("#fbdcc4", "#5a2f10"),
    "gray": ("#b3bac5", "#59626d"),
    "series-1": ("#0072b2", "#4ba3e3"),
    "series-2": ("#d55e00", "#ff8a3d"),
    "series-3": ("#009e73", "#2fc99a"),
    "series-4": ("#b14a86", "#e08fbd"),
    "series-5": ("#8a6d00", "#e6c229"),
    "series-6": ("#59636e", "#9aa4b0"),
    "series-7": ("#56b4e9", "#9bd3f7"),
    "series-8": ("#7a4fd0", "#b392f0"),
}


class Picture:
    """Text is 16 units high unless it says otherwise, so a picture 720 units wide is readable at 400 pixels."""

    def __init__(self, width, height, label):
        self.width, self.height, self.label = width, height, label
        self.elements = []
        self.rect(0, 0, width, height, "background")

    def add(self, element, **attributes):
        content = attributes.pop("content", None)
        text = "".join(f" {name.replace('_', '-')}={quoteattr(number(value))}" for name, value in attributes.items())
        self.elements.append(f"<{element}{text}/>" if content is None else f"<{element}{text}>{content}</{element}>")

    def rect(self, x, y, width, height, fill, stroke=None, radius=0, **attributes):
        classes = f"fill-{fill}" + (f" stroke-{stroke}" if stroke else "")
        rounded = {"rx": radius} if radius else {}
        self.add("rect", x=x, y=y, width=width, height=height, **rounded, **attributes, **{"class": classes})

    def line(self, x1, y1, x2, y2, stroke="line", **attributes):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes, **{"class": f"stroke-{stroke}"})

    def polyline(self, points, stroke, width=2, **attributes):
        text = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.add("polyline", points=text, fill="none", stroke_width=width, **attributes, **{"class": f"stroke-{stroke}"})

    def polygon(self, points, fill, **attributes):
        text = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.add("polygon", points=text, **attributes, **{"class": f"fill-{fill}"})

    def circle(self, x, y, radius, fill, **attributes):
        self.add("circle", cx=x, cy=y, r=radius, **attributes, **{"class": f"fill-{fill}"})

    def text(self, x, y, text, fill="text", size=None, anchor=None, bold=False, code=False, **attributes):
        style = {}
        if size:
            style["font_size"] = size
        if anchor:
            style["text_anchor"] = anchor
        if bold:
            style["font_weight"] = 600
        classes = [name for name, wanted in ((f"fill-{fill}", fill != "text"), ("code", code)) if wanted]
        if classes:
            style["class"] = " ".join(classes)
        self.add("text", x=x, y=y, **style, **attributes, content=escape(text))

    def arrow(self, points, stroke="line", width=1.5):
        """Draws a line through points, with a head at its end. The last segment is horizontal or vertical."""
        (x1, y1), (x2, y2) = points[-2:]
        length, half = 8, 4
        dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
        base = (x2 - length * dx, y2 - length * dy)
        self.polyline([*points[:-1], base], stroke, width)
        across = (half * dy, half * dx)
        head = [(x2, y2), (base[0] + across[0], base[1] + across[1]), (base[0] - across[0], base[1] - across[1])]
        self.polygon(head, stroke)

    def svg(self):
        body = "\n".join(self.elements)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="system-ui, sans-serif" font-size="16" class="fill-text" role="img" '
            f"aria-label={quoteattr(self.label)}>\n{style_sheet(body)}\n{body}\n</svg>\n"
        )


def style_sheet(body):
    """Returns the colors that a picture uses."""
    def rules(mode):
        found = ["svg{fill:%s}" % COLORS["text"][mode]]
        for role, colors in COLORS.items():
            found += [
                ".%s-%s{%s:%s}" % (use, role, use, colors[mode])
                for use in ("fill", "stroke")
                if re.search(rf'[" ]{use}-{role}[" ]', body)
            ]
        return "".join(found)

    code = ".code{font-family:ui-monospace,monospace}" if 'class="code"' in body or " code" in body else ""
    return f"<style>{code}{rules(0)}\n@media (prefers-color-scheme:dark){{{rules(1)}}}</style>"


def number(value):
    """Returns a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
