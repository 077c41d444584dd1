// The timeline of a rank: a track per stream and thread, moved and zoomed by wheel, hand and keys.
// Where every event has a slice it is drawn at any zoom; a joined slice says how many it stands for.

const HEAD = 34, LABEL = 13, HUNDREDTHS = 100, NEAR = 2, PRESS = 4;

// The columns of a track as typed arrays, times in microseconds.
function unpacked(track, top) {
  const count = track.starts.length;
  const start = new Float64Array(count), length = new Float64Array(count);
  let sum = 0;
  for (let at = 0; at < count; at += 1) {
    sum += track.starts[at];
    start[at] = sum / HUNDREDTHS;
    length[at] = track.lengths[at] / HUNDREDTHS;
  }
  return { ...track, top, count, start, length, critical: new Set(track.critical) };
}

function timeline(canvas) {
  const rank = Number(canvas.dataset.rank);
  const found = drawings.timelines[rank], name = drawings.labels[rank];
  const box = canvas.parentElement, told = box.querySelector(".told");
  const span = found.span || 1, detail = found.detail;
  const marked = detail !== null && (found.joined || detail.to - detail.from < 0.9 * span);
  const least = Math.max(span / 1e7, 0.05);
  let from = 0, to = span, chosen = null, palette = null;
  let height = HEAD;
  const tracks = found.tracks.map((track) => {
    const made = unpacked(track, height);
    height += LABEL + track.levels * ROW + 6;
    return made;
  });
  height += 4;

  // -- drawing --

  function draw() {
    const context = ready(canvas, height), width = canvas.clientWidth;
    const scale = width / (to - from), muted = colour("--muted");
    const styles = getComputedStyle(document.documentElement);
    palette = found.kinds.map((kind) => styles.getPropertyValue("--kind-" + kind).trim()
      || styles.getPropertyValue("--kind-other").trim());
    drawDetail(context, width, scale);
    drawBusy(context, width, scale);
    drawAxis(context, width, muted);
    context.textAlign = "left";
    for (const track of tracks) drawTrack(context, track, scale, width);
    // Names stay readable above slices of the track before.
    context.fillStyle = muted;
    for (const track of tracks) context.fillText(track.name, 2, track.top + LABEL / 2);
  }

  function drawAxis(context, width, muted) {
    const marks = width < 480 ? 2 : 4, step = (to - from) / marks;
    context.fillStyle = muted;
    for (let mark = 0; mark <= marks; mark += 1) {
      context.textAlign = mark === 0 ? "left" : mark === marks ? "right" : "center";
      context.fillText(moment(from + step * mark, step, to), (width * mark) / marks, 7);
    }
  }

  function drawDetail(context, width, scale) {
    if (!marked) return;
    const left = Math.max(0, (detail.from - from) * scale);
    const right = Math.min(width, (detail.to - from) * scale);
    if (right <= left) return;
    context.globalAlpha = 0.1;
    context.fillStyle = colour("--accent");
    context.fillRect(left, 14, right - left, height - 14);
    context.globalAlpha = 1;
    context.fillRect(left, 14, right - left, 2);
  }

  function drawBusy(context, width, scale) {
    const each = found.span / (found.busy.length || 1);
    context.fillStyle = colour("--accent");
    context.globalAlpha = 0.55;
    found.busy.forEach((share, index) => {
      const x = (index * each - from) * scale, wide = each * scale;
      if (x + wide < 0 || x > width) return;
      const tall = (share / 100) * (HEAD - 20);
      context.fillRect(x, HEAD - 2 - tall, Math.max(wide, 0.5), tall);
    });
    context.globalAlpha = 1;
  }

  function drawTrack(context, track, scale, width) {
    let last = new Array(track.levels).fill(-1);
    const y = track.top + LABEL, text = colour("--text");
    for (let at = 0; at < track.count; at += 1) {
      if (at === track.joined) last = new Array(track.levels).fill(-1);
      const x = (track.start[at] - from) * scale, wide = track.length[at] * scale;
      if (x + wide < 0 || x > width) continue;
      const level = track.level === null ? 0 : track.level[at];
      const isChosen = chosen !== null && chosen.track === track && chosen.at === at;
      if (x + wide < last[level] + 0.5 && !isChosen) continue;
      last[level] = x + Math.max(wide, 0.6);
      drawSlice(context, track, at, x, y + level * ROW, wide, width);
      if (isChosen) {
        context.strokeStyle = text;
        context.lineWidth = 2;
        context.strokeRect(x, y + level * ROW, Math.max(wide, 2), ROW - 2);
      }
    }
  }

  function drawSlice(context, track, at, x, y, wide, width) {
    const fill = palette[track.kind[at]];
    // A canvas draws nothing of a rectangle that is many millions of pixels wide.
    const left = Math.max(x, -10), right = Math.min(x + wide, width + 10);
    context.fillStyle = fill;
    context.fillRect(left, y, Math.max(right - left - 0.4, 0.6), ROW - 2);
    if (track.critical.has(at)) {
      context.fillStyle = colour("--text");
      context.fillRect(left, y + ROW - 4, Math.max(right - left - 0.4, 0.6), 2);
    }
    if (wide > 40) {
      context.fillStyle = inkOn(fill);
      const start = Math.max(x, 0);
      label(context, called(track, at), start + 3, y + ROW / 2 - 1, Math.min(right, width) - start - 4);
    }
  }

  // -- what a slice is --

  function called(track, at) {
    return at < track.joined ? track.number[at].toLocaleString("en") + " events"
      : found.names[track.label[at]];
  }

  function described(track, at) {
    const when = "starts at " + time(track.start[at]) + " · lasts " + time(track.length[at]);
    if (at < track.joined) {
      const count = track.number[at];
      return [`joined: ${count.toLocaleString("en")} event${count === 1 ? "" : "s"} here`, when,
        track.name];
    }
    const said = [found.names[track.label[at]], when, found.kinds[track.kind[at]], track.name];
    if (track.operator !== null && track.operator[at] >= 0) {
      said.push("launched by " + found.names[track.operator[at]]);
    }
    if (track.number[at] > 0) said.push("correlation " + track.number[at]);
    if (track.critical.has(at)) said.push("on the critical path");
    return said;
  }

  // The slice at a place: one that is an event of its own before a joined one, the nearest first.
  function under(x, y) {
    const when = from + (x / canvas.clientWidth) * (to - from);
    const near = ((to - from) / canvas.clientWidth) * NEAR;
    for (const track of tracks) {
      const level = Math.floor((y - track.top - LABEL) / ROW);
      if (level < 0 || level >= track.levels) continue;
      let best = null, distance = Infinity;
      for (let at = 0; at < track.count; at += 1) {
        if (track.level !== null && track.level[at] !== level) continue;
        const start = track.start[at], end = start + track.length[at];
        const away = when < start ? start - when : when > end ? when - end : 0;
        const rated = away + (at < track.joined ? near : 0);
        if (away <= near && rated <= distance) { best = { track, at }; distance = rated; }
      }
      return best;
    }
    return null;
  }

  function tell() {
    told.textContent = chosen === null ? "" : described(chosen.track, chosen.at).join(" · ");
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;

  function hint(x, y) {
    const hit = under(x, y);
    tip.hidden = hit === null;
    if (hit === null) return;
    const [first, ...rest] = described(hit.track, hit.at);
    const head = document.createElement("b");
    head.textContent = first;
    tip.replaceChildren(head, ...rest.map((line) => {
      const made = document.createElement("span");
      made.textContent = line;
      return made;
    }));
    const wide = tip.offsetWidth, left = canvas.offsetLeft, over = canvas.offsetTop;
    tip.style.left = left + Math.max(0, Math.min(x + 12, canvas.clientWidth - wide)) + "px";
    tip.style.top = over + y + 16 + "px";
  }

  // -- moving --

  function show(start, width) {
    const wide = Math.min(span, Math.max(least, width));
    from = Math.max(0, Math.min(start, span - wide));
    to = from + wide;
    tip.hidden = true;
    draw();
  }

  function zoom(x, factor) {
    const share = x / canvas.clientWidth, wide = Math.min(span, Math.max(least, (to - from) * factor));
    show(from + share * (to - from) - share * wide, wide);
  }

  function showAll() { show(0, span); }
  function showDetail() {
    if (detail !== null) show(detail.from, detail.to - detail.from);
  }
  function pan(share) { show(from + share * (to - from), to - from); }
  const middle = () => canvas.clientWidth / 2;

  function at(event) {
    const frame = canvas.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }

  canvas.addEventListener("wheel", (event) => {
    // Zoomed out already: the page may scroll on.
    if (event.deltaY > 0 && to - from >= span && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / canvas.clientWidth);
    else zoom(at(event)[0], Math.exp(event.deltaY * (event.ctrlKey ? 0.01 : 0.002)));
  }, { passive: false });

  // One pointer drags; two keep the moments under them while they move apart or together.
  const pointers = new Map();
  let grip = null, moved = false;

  function grasp() {
    grip = [...pointers.values()].slice(0, 2)
      .map(([x]) => from + (x / canvas.clientWidth) * (to - from));
  }

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    if (pointers.size === 0) moved = false;
    pointers.set(event.pointerId, at(event));
    canvas.setPointerCapture(event.pointerId);
    grasp();
  });
  canvas.addEventListener("pointermove", (event) => {
    const place = at(event), before = pointers.get(event.pointerId);
    if (before === undefined) {
      if (event.pointerType !== "touch") hint(...place);
      return;
    }
    if (!moved && pointers.size === 1 && Math.abs(place[0] - before[0]) < PRESS) return;
    moved = true;
    pointers.set(event.pointerId, place);
    const [one, two] = [...pointers.values()].map(([x]) => x), width = canvas.clientWidth;
    if (two === undefined) {
      show(grip[0] - (one / width) * (to - from), to - from);
    } else if (Math.abs(two - one) > PRESS) {
      const wide = Math.abs(((grip[1] - grip[0]) / (two - one)) * width);
      show(grip[0] - (one / width) * wide, wide);
    }
  });
  function release(event) {
    const tapped = pointers.delete(event.pointerId) && !moved && event.type === "pointerup";
    if (pointers.size) { moved = true; grasp(); }
    if (!tapped) return;
    chosen = under(...at(event));
    tell();
    draw();
    hint(...at(event));
  }
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { if (pointers.size === 0) tip.hidden = true; });
  canvas.addEventListener("dblclick", showAll);

  const KEYS = {
    "+": () => zoom(middle(), 0.7), "=": () => zoom(middle(), 0.7), "-": () => zoom(middle(), 1.4),
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), 0: showAll, m: showDetail,
    Home: () => show(0, to - from), End: () => show(span, to - from),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });

  // -- around the canvas --

  const tools = document.createElement("div");
  tools.className = "tools";
  const heading = document.createElement("b");
  heading.textContent = name;
  tools.append(heading);
  if (detail !== null) {
    const step = detail.name.includes("median") ? "Show the median step" : "Show the step";
    const text = detail.step ? step : "Show the part in full";
    tools.append(button(text, text + ": " + detail.name, showDetail));
  }
  tools.append(
    button("All", "Show all of it", showAll),
    button("−", "Zoom out", () => zoom(middle(), 1.6)),
    button("+", "Zoom in", () => zoom(middle(), 0.6)),
    button("←", "Earlier", () => pan(-0.3)),
    button("→", "Later", () => pan(0.3)),
  );
  box.prepend(tools);
  box.append(tip);
  canvas.after(legend(found, tracks, marked));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Timeline of " + name
    + "; arrows move, plus and minus zoom, 0 shows all, m the median step");
  tell();
  return draw;
}

// What the colours mean, by sort of track, and the marks.
function legend(found, tracks, marked) {
  const shown = document.createElement("div");
  shown.className = "keys";
  const seen = new Set();
  const joined = found.kinds.indexOf("joined");
  for (const [role, title] of [["gpu", "GPU"], ["host", "Host"], ["path", "Critical path"]]) {
    const kinds = new Set();
    for (const track of tracks) {
      if (track.role === role) for (const kind of track.kind) if (kind !== joined) kinds.add(kind);
    }
    const fresh = [...kinds].filter((kind) => !seen.has(kind)).sort((a, b) => a - b);
    if (!fresh.length) continue;
    const row = document.createElement("p"), head = document.createElement("b");
    head.textContent = title;
    row.append(head, ...fresh.map((kind) => key(found.kinds[kind], found.kinds[kind])));
    fresh.forEach((kind) => seen.add(kind));
    shown.append(row);
  }
  const marks = document.createElement("p"), head = document.createElement("b");
  head.textContent = "Marks";
  marks.append(head);
  if (tracks.some((track) => track.joined)) marks.append(key("joined", "events joined"));
  if (tracks.some((track) => track.critical.size)) marks.append(key("path", "on the critical path"));
  if (marked) {
    marks.append(key("detail", found.joined ? "drawn event by event" : found.detail.name));
  }
  if (marks.childElementCount > 1) shown.append(marks);
  return shown;
}

function key(kind, text) {
  const made = document.createElement("span"), patch = document.createElement("i");
  patch.className = "patch-" + kind;
  patch.style.background = `var(--kind-${kind}, var(--kind-other))`;
  made.append(patch, text);
  return made;
}
