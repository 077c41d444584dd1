// Starts what is drawn on the page of a trace, and draws it anew when its width or colours change.

const redraws = [
  ...[...document.querySelectorAll("canvas.timeline")].map(timeline),
  ...[...document.querySelectorAll("canvas.flame")].map(flame),
];
document.querySelectorAll("table.sortable").forEach(sortable);
function redraw() { redraws.forEach((draw) => draw()); }
redraw();
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
