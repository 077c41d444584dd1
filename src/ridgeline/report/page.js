// Draws the page's figures with plotly.js. Colours in them are names of CSS variables, so that a
// plot has the colours of the reader's scheme, and changes with it.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const coarse = window.matchMedia("(pointer: coarse)");

  function resolved(value, styles) {
    if (typeof value === "string") {
      return value.startsWith("--") ? styles.getPropertyValue(value).trim() || "#888" : value;
    }
    if (Array.isArray(value)) {
      return value.map((item) => resolved(item, styles));
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, item]) => [key, resolved(item, styles)])
      );
    }
    return value;
  }

  function draw() {
    const styles = getComputedStyle(document.documentElement);
    for (const [identifier, figure] of Object.entries(figures)) {
      const place = document.getElementById(identifier);
      const { data, layout } = resolved(figure, styles);
      layout.font.family = styles.fontFamily;
      layout.font.size = narrow.matches ? 11 : 12;
      layout.height = place.clientHeight || 340;
      // A finger on a plot means to scroll the page.
      layout.dragmode = coarse.matches ? false : "zoom";
      Plotly.react(place, data, layout, {
        displaylogo: false,
        displayModeBar: coarse.matches || narrow.matches ? false : "hover",
        modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
        responsive: true,
      });
    }
  }

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
