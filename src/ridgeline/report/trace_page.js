// Draws the timelines and flame graphs of a trace's page on canvases, and makes tables sort and filter.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("drawings").textContent);
  const COLOURS = {
    gemm: "#2257b8", convolution: "#4a6fd0", attention: "#9b5fc9", norm: "#38a3d8", scan: "#5b6ee1",
    elementwise: "#4cae8a", reduction: "#7cb342", indexing: "#b0a030", optimizer: "#c678a8",
    communication: "#d9534a", copy: "#d0902c", other: "#8a94a0", merged: "#a7b0ba",
    operator: "#6b9bd1", runtime: "#c98a5a", driver: "#b5764a", python: "#7fae6e",
    annotation: "#b49ac9", overhead: "#999999", host: "#e3a008", launch: "#c98a5a",
    gap: "#9aa5b1", wait: "#74808d", synchronise: "#b35c5c",
  };
  const ROW = 16, HEAD = 30, LABEL = 13;

  function time(us) {
    const size = Math.abs(us);
    if (size >= 1e6) return (us / 1e6).toPrecision(4) + " s";
    if (size >= 1e3) return (us / 1e3).toPrecision(4) + " ms";
    return us.toPrecision(4) + " µs";
  }

  function ready(canvas, height) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.textBaseline = "middle";
    context.font = "11px system-ui, sans-serif";
    return context;
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function label(context, text, x, y, width) {
    if (width < 24) return;
    const fits = Math.floor(width / 6);
    context.fillText(text.length > fits ? text.slice(0, Math.max(1, fits - 1)) + "…" : text, x, y);
  }

  function timeline(canvas) {
    const rank = Number(canvas.dataset.rank);
    const found = data.timelines[rank];
    const told = canvas.parentElement.querySelector(".told");
    let from = 0, to = found.span || 1, chosen = null;
    let top = HEAD;
    const places = found.tracks.map((track) => {
      const place = top;
      top += LABEL + track.levels * ROW + 6;
      return place;
    });
    const height = top + 4;
    told.textContent = data.labels[rank];

    function draw() {
      const context = ready(canvas, height);
      const width = canvas.clientWidth, scale = width / (to - from);
      const text = colour("--text"), muted = colour("--muted");
      drawBusy(context, width, scale);
      context.fillStyle = muted;
      for (let tick = 0; tick <= 4; tick += 1) {
        const x = (width * tick) / 4;
        context.textAlign = tick === 0 ? "left" : tick === 4 ? "right" : "center";
        context.fillText(time(from + ((to - from) * tick) / 4), x, 7);
      }
      context.textAlign = "left";
      found.tracks.forEach((track, index) => {
        context.fillStyle = muted;
        context.fillText(track.name, 2, places[index] + LABEL / 2);
        drawTrack(context, track, places[index] + LABEL, scale, width, text);
      });
    }

    function drawBusy(context, width, scale) {
      const each = found.span / (found.busy.length || 1);
      context.fillStyle = colour("--accent");
      context.globalAlpha = 0.55;
      found.busy.forEach((share, index) => {
        const x = (index * each - from) * scale, wide = each * scale;
        if (x + wide < 0 || x > width) return;
        const tall = (share / 100) * (HEAD - 16);
        context.fillRect(x, HEAD - 2 - tall, Math.max(wide, 0.5), tall);
      });
      context.globalAlpha = 1;
    }

    function drawTrack(context, track, y, scale, width) {
      const slices = track.slices;
      const last = new Array(track.levels).fill(-1);
      for (let at = 0; at < slices.length; at += 5) {
        const x = (slices[at] - from) * scale, wide = slices[at + 1] * scale;
        if (x + wide < 0 || x > width) continue;
        const level = slices[at + 2];
        if (x + wide < last[level] + 0.5) continue;
        last[level] = x + Math.max(wide, 0.5);
        context.fillStyle = COLOURS[found.kinds[slices[at + 3]]] || COLOURS.other;
        context.fillRect(x, y + level * ROW, Math.max(wide - 0.4, 0.6), ROW - 2);
        if (wide > 40) {
          context.fillStyle = "#ffffff";
          const left = Math.max(x, 0);
          label(context, found.names[slices[at + 4]], left + 3, y + level * ROW + ROW / 2 - 1,
            Math.min(x + wide, width) - left - 4);
        }
        if (chosen !== null && chosen[0] === slices && chosen[1] === at) {
          context.strokeStyle = colour("--text");
          context.strokeRect(x, y + level * ROW, Math.max(wide, 1), ROW - 2);
        }
      }
    }

    function at(event) {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    function under(x, y) {
      const moment = from + (x / canvas.clientWidth) * (to - from);
      const near = ((to - from) / canvas.clientWidth) * 2;
      for (let index = 0; index < places.length; index += 1) {
        const level = Math.floor((y - places[index] - LABEL) / ROW);
        const track = found.tracks[index];
        if (level < 0 || level >= track.levels) continue;
        let best = null, distance = near;
        for (let at = 0; at < track.slices.length; at += 5) {
          if (track.slices[at + 2] !== level) continue;
          const start = track.slices[at], end = start + track.slices[at + 1];
          const away = moment < start ? start - moment : moment > end ? moment - end : 0;
          if (away <= distance) { best = [track.slices, at, track.name]; distance = away; }
        }
        return best;
      }
      return null;
    }

    function zoom(centre, factor) {
      const moment = from + (centre / canvas.clientWidth) * (to - from);
      const least = Math.max(found.span / 1e6, 0.05);
      const wide = Math.min(found.span, Math.max(least, (to - from) * factor));
      from = Math.max(0, Math.min(moment - (centre / canvas.clientWidth) * wide, found.span - wide));
      to = from + wide;
      draw();
    }

    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoom(at(event)[0], Math.exp(event.deltaY * 0.002));
    }, { passive: false });
    let grabbed = null;
    canvas.addEventListener("pointerdown", (event) => {
      grabbed = [at(event)[0], from, to, false];
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (grabbed === null) return;
      const moved = at(event)[0] - grabbed[0];
      if (Math.abs(moved) > 3) grabbed[3] = true;
      const wide = grabbed[2] - grabbed[1];
      from = Math.max(0, Math.min(grabbed[1] - (moved / canvas.clientWidth) * wide, found.span - wide));
      to = from + wide;
      draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (grabbed !== null && !grabbed[3]) {
        chosen = under(...at(event));
        told.textContent = chosen === null ? data.labels[rank]
          : data.labels[rank] + " · " + chosen[2] + " · " + found.names[chosen[0][chosen[1] + 4]]
            + " · " + time(chosen[0][chosen[1] + 1]) + " at " + time(chosen[0][chosen[1]]);
        draw();
      }
      grabbed = null;
    });
    canvas.addEventListener("dblclick", () => { from = 0; to = found.span || 1; draw(); });
    canvas.addEventListener("keydown", (event) => {
      const middle = canvas.clientWidth / 2;
      if (event.key === "+" || event.key === "=") zoom(middle, 0.7);
      else if (event.key === "-") zoom(middle, 1.4);
      else if (event.key === "0") { from = 0; to = found.span || 1; draw(); }
    });
    return draw;
  }

  function flame(canvas) {
    const rank = Number(canvas.dataset.rank);
    const told = canvas.parentElement.querySelector(".told");
    const roots = data.flames[rank];
    let by = 1, path = [], boxes = [];
    const whole = ["all", 0, 0, 0, roots];
    for (const root of roots) { whole[1] += root[1]; whole[2] += root[2]; }
    told.textContent = data.labels[rank];

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
      told.textContent = found === undefined ? data.labels[rank]
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

  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    function sort(index) {
      const down = heads[index].getAttribute("aria-sort") !== "descending";
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      heads[index].setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [row.cells[index].dataset.value, row]);
      const numbers = rows.every(([value]) => value === "" || !Number.isNaN(Number(value)));
      rows.sort(([a], [b]) => {
        if (a === "" || b === "") return (a === "") - (b === "");
        const order = numbers ? Number(a) - Number(b) : a.localeCompare(b);
        return down ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    }
    heads.forEach((head, index) => {
      head.addEventListener("click", () => sort(index));
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(index); });
    });
    const section = table.closest("section");
    const filter = section.querySelector(".filter");
    if (filter === null) return;
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase();
      for (const row of body.rows) {
        row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
      }
    });
  }

  const drawings = [
    ...[...document.querySelectorAll("canvas.timeline")].map(timeline),
    ...[...document.querySelectorAll("canvas.flame")].map(flame),
  ];
  document.querySelectorAll("table.sortable").forEach(sortable);
  function drawAll() { drawings.forEach((draw) => draw()); }
  drawAll();
  window.addEventListener("resize", drawAll);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
