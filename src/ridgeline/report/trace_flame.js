// The flame graph of a rank: boxes inside boxes, zoomed by a click.

function flame(canvas) {
  const rank = Number(canvas.dataset.rank);
  const told = canvas.parentElement.querySelector(".told");
  const roots = drawings.flames[rank];
  let by = 1, path = [], boxes = [];
  const whole = ["all", 0, 0, 0, roots];
  for (const root of roots) { whole[1] += root[1]; whole[2] += root[2]; }
  told.textContent = drawings.labels[rank];

  function depth(node) {
    let deepest = 0;
    for (const child of node[4]) if (child[by] > 0) deepest = Math.max(deepest, depth(child));
    return deepest + 1;
  }

  function draw() {
    const node = path.length ? path[path.length - 1] : whole;
    const above = path.length ? path.length : 0;
    const height = (Math.min(depth(node), 32) + above) * ROW + 8;
    const context = ready(canvas, height);
    boxes = [];
    const width = canvas.clientWidth;
    [whole, ...path.slice(0, -1)].slice(0, above).forEach((outer, index) => {
      box(context, outer, 0, index * ROW, width, index);
    });
    lay(context, node, 0, above * ROW, width, above);
  }

  function box(context, node, x, y, wide, level) {
    let hash = 0;
    for (let index = 0; index < node[0].length; index += 1) {
      hash = (hash * 31 + node[0].charCodeAt(index)) % 997;
    }
    context.fillStyle = "hsl(" + (200 + (hash % 160)) + " 45% " + (42 + (hash % 12)) + "%)";
    context.fillRect(x, y, Math.max(wide - 0.5, 0.5), ROW - 1);
    context.fillStyle = "#ffffff";
    label(context, node[0], x + 3, y + ROW / 2, wide - 4);
    boxes.push([x, y, wide, node, level]);
  }

  function lay(context, node, x, y, wide, level) {
    if (wide < 0.6 || level > 60) return;
    box(context, node, x, y, wide, level);
    const size = node[by] || 1;
    let left = x;
    for (const child of [...node[4]].sort((a, b) => b[by] - a[by])) {
      const share = (child[by] / size) * wide;
      lay(context, child, left, y + ROW, share, level + 1);
      left += share;
    }
  }

  function route(target, node, trail) {
    if (node === target) return trail;
    for (const child of node[4]) {
      const found = route(target, child, [...trail, child]);
      if (found !== null) return found;
    }
    return null;
  }

  function hit(event) {
    const frame = canvas.getBoundingClientRect();
    const x = event.clientX - frame.left, y = event.clientY - frame.top;
    return boxes.find((one) => x >= one[0] && x <= one[0] + one[2] && y >= one[1] && y < one[1] + ROW);
  }

  canvas.addEventListener("mousemove", (event) => {
    const found = hit(event);
    told.textContent = found === undefined ? drawings.labels[rank]
      : found[3][0] + " · host " + time(found[3][1]) + " · GPU " + time(found[3][2])
        + (found[3][3] ? " · " + found[3][3] + " calls" : "");
  });
  canvas.addEventListener("click", (event) => {
    const found = hit(event);
    if (found === undefined) return;
    path = found[3] === whole ? [] : route(found[3], whole, []) || [];
    draw();
  });
  for (const button of document.querySelectorAll(".by")) {
    button.addEventListener("click", () => {
      by = Number(button.dataset.by);
      path = [];
      for (const other of document.querySelectorAll(".by")) {
        other.setAttribute("aria-pressed", String(other === button));
      }
      draw();
    });
  }
  return draw;
}
