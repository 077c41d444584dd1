// What the drawings of a trace's page share: canvases, times, and labels that fit.
"use strict";
const drawings = JSON.parse(document.getElementById("drawings").textContent);
const ROW = 16;

function time(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return (us / 1e6).toPrecision(4) + " s";
  if (size >= 1e3) return (us / 1e3).toPrecision(4) + " ms";
  if (size === 0) return "0 µs";
  return us.toPrecision(4) + " µs";
}

// A moment on an axis whose marks are `step` apart: as many digits as tell them apart.
function moment(us, step, until) {
  const [size, unit] = until >= 1e6 ? [1e6, " s"] : until >= 1e3 ? [1e3, " ms"] : [1, " µs"];
  const places = Math.min(9, Math.max(0, 1 - Math.floor(Math.log10(step / size))));
  return (us / size).toFixed(places) + unit;
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

// Dark letters on light colours, light ones on dark colours.
function inkOn(hex) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150 ? "#14202b" : "#ffffff";
}

function label(context, text, x, y, width) {
  if (width < 24) return;
  let shown = text, wide = context.measureText(text).width;
  while (wide > width && shown.length > 1) {
    shown = shown.slice(0, Math.max(1, Math.min(shown.length - 1, (shown.length * width) / wide - 1)));
    wide = context.measureText(shown + "…").width;
  }
  context.fillText(shown === text ? text : shown + "…", x, y);
}

function button(text, title, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "tool";
  made.textContent = text;
  made.title = title;
  made.setAttribute("aria-label", title);
  made.addEventListener("click", act);
  return made;
}
