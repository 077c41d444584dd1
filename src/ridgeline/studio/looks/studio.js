// An explorer's page: inputs → address → answer → picture. The address is all the state there is;
// of many moves the newest alone is answered.
const shown = JSON.parse(document.getElementById("shown").textContent);
const controls = document.getElementById("controls");
const picture = document.getElementById("picture");
const sentence = document.getElementById("sentence");
const problem = document.getElementById("problem");
const commandLine = document.getElementById("command");
const done = document.getElementById("done");
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");
const coarse = matchMedia("(pointer: coarse)");
let figures = shown.figures;

// -- inputs and address ---------------------------------------------------------------------------

const read = {
  range: (one) => JSON.parse(one.dataset.stops)[Number(one.value)][0],
  checkbox: (one) => (one.checked ? "1" : "0"),
  FIELDSET: (one) => {
    const wanted = !one.dataset.off;
    const boxes = [...one.querySelectorAll("input")].filter((box) => box.checked === wanted);
    return boxes.map((box) => box.value).join(",");
  },
};

function inputs() {
  return [...controls.querySelectorAll("[data-name]")];
}

function address() {
  const pairs = inputs().map((one) => {
    const take = read[one.tagName === "FIELDSET" ? "FIELDSET" : one.type];
    return [one.dataset.name, take ? take(one) : one.value];
  });
  return new URLSearchParams(pairs).toString();
}

function writeValue(one) {
  if (one.type === "range") {
    const text = JSON.parse(one.dataset.stops)[Number(one.value)][1];
    one.setAttribute("aria-valuetext", text);
    one.closest(".field").querySelector("output").value = text;
  }
}

// -- one answer at a time, the newest address last ------------------------------------------------

let asking = null;
let waiting = false;

async function ask() {
  waiting = true;
  if (asking) return;
  while (waiting) {
    waiting = false;
    const query = address();
    document.body.setAttribute("aria-busy", "true");
    asking = fetch(`/api/${shown.name}?${query}`);
    try {
      const answer = await asking;
      const body = await answer.json();
      if (answer.ok) show(body);
      else tell(body.error);
      history.replaceState(null, "", `?${query}`);
    } catch {
      tell("The studio does not answer: it was ended, or this machine slept. Start it again.");
    }
    asking = null;
  }
  document.body.removeAttribute("aria-busy");
}

function tell(text) {
  problem.textContent = text;
  problem.hidden = false;
  sentence.hidden = true;
  picture.classList.add("old");
}

function show(body) {
  problem.hidden = true;
  sentence.hidden = false;
  picture.classList.remove("old");
  if (sentence.textContent !== body.sentence) sentence.textContent = body.sentence;
  commandLine.textContent = body.command;
  figures = body.figures;
  // The new markup takes the old plots over: a plot that is drawn again is faster than a new one.
  const fresh = document.createElement("template");
  fresh.innerHTML = body.markup;
  for (const place of fresh.content.querySelectorAll(".plot")) {
    const old = document.getElementById(place.id);
    if (old) {
      old.style.cssText = place.style.cssText;
      place.replaceWith(old);
    }
  }
  const open = [...picture.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
  for (const summary of fresh.content.querySelectorAll("details > summary")) {
    summary.parentElement.open = open.includes(summary.textContent);
  }
  picture.replaceChildren(fresh.content);
  drawAll();
}

// -- figures ---------------------------------------------------------------------------------------

function resolved(value, styles) {
  if (typeof value === "string") {
    return value.startsWith("--") ? styles.getPropertyValue(value).trim() || "#888" : value;
  }
  if (Array.isArray(value)) return value.map((item) => resolved(item, styles));
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, styles)]));
  }
  return value;
}

// A plot that shows what it showed is left alone: most moves change some of a page's plots.
function drawAll(anew = false) {
  // A table that scrolls can be scrolled by keyboard too.
  for (const scroll of picture.querySelectorAll(".scroll")) {
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Table");
  }
  const styles = getComputedStyle(document.documentElement);
  for (const [identifier, figure] of Object.entries(figures)) {
    const place = document.getElementById(identifier);
    if (!place) continue;
    const said = JSON.stringify(figure);
    if (!anew && place.said === said) continue;
    place.said = said;
    const { data, layout } = resolved(figure, styles);
    layout.font = { ...layout.font, family: styles.fontFamily, size: narrow.matches ? 11 : 12.5 };
    layout.height = (parseFloat(place.style.minHeight) || 340) + legendRoom(data);
    // A legend shows all of its lines: one that scrolls inside a plot hides them.
    layout.legend = { ...layout.legend, maxheight: 400 };
    // A finger on a plot means to scroll the page.
    layout.dragmode = coarse.matches ? false : "zoom";
    Plotly.react(place, data, layout, { displaylogo: false, displayModeBar: false, responsive: true });
    name(place);
    if (!place.dataset.clickable) {
      place.dataset.clickable = "1";
      place.on("plotly_click", ({ points }) => choose(points[0]?.customdata));
    }
  }
  reach();
}

// On a narrow screen a legend has two entries a line: the plot grows by the lines below the second.
function legendRoom(data) {
  if (!narrow.matches) return 0;
  const named = data.filter((trace) => trace.name && trace.showlegend !== false).length;
  return 20 * Math.max(0, Math.ceil(named / 2) - 2);
}

// What scrolls can be reached and scrolled with the keyboard.
function reach() {
  for (const one of picture.querySelectorAll(".scroll")) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
  }
}

// A point may name an input and a value, `set:part=training`: a click on it moves that input.
function choose(said) {
  const [, input, value] = /^set:(\w+)=([\w.-]+)$/.exec(String(said)) ?? [];
  const control = input && controls.querySelector(`select[data-name="${input}"]`);
  if (!control) return;
  control.value = value;
  ask();
}

// A plot is a picture to who cannot see it: its heading names it, the table beside it says the rest.
function name(place) {
  const heading = place.closest("section")?.querySelector("h2, h3");
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", heading ? `Plot: ${heading.textContent}` : "Plot");
}

// -- to take along ---------------------------------------------------------------------------------

function say(text) {
  done.textContent = text;
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard without a secure context: the older way still works there.
    const box = document.createElement("textarea");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  say(`${what} copied`);
}

function save(href, name) {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

async function savePictures(format) {
  for (const identifier of Object.keys(figures)) {
    const place = document.getElementById(identifier);
    const size = { width: place.clientWidth, height: place.clientHeight, scale: format === "png" ? 2 : 1 };
    save(await Plotly.toImage(place, { format, ...size }), `${shown.name}-${identifier}.${format}`);
  }
  say(`${format.toUpperCase()} saved`);
}

const actions = {
  "copy-command": () => copy(commandLine.textContent, "Command"),
  "copy-link": () => copy(`${location.origin}${location.pathname}?${address()}`, "Link"),
  "save-json": () => save(`/api/${shown.name}/answer?${address()}`, `${shown.name}.json`),
  "save-svg": () => savePictures("svg"),
  "save-png": () => savePictures("png"),
  reset: () => location.assign(`${location.pathname}?${shown.start}`),
};
for (const [identifier, act] of Object.entries(actions)) {
  document.getElementById(identifier).addEventListener("click", act);
}

// -- playing a moment ------------------------------------------------------------------------------

// The slider beside a button runs through its stops, the next one when the picture of the last
// stands; at the end, at a press and at a touch of any input it rests.
const PLAY_MS = 140;
let playing = null;

async function play(button) {
  const slider = controls.querySelector(`input[data-name="${button.dataset.play}"]`);
  rest();
  playing = button;
  button.textContent = "Pause";
  button.setAttribute("aria-pressed", "true");
  if (slider.value === slider.max) slider.value = slider.min;
  while (playing === button && slider.value !== slider.max) {
    slider.value = Number(slider.value) + 1;
    writeValue(slider);
    await Promise.all([settled(), new Promise((done) => setTimeout(done, PLAY_MS))]);
    if (!problem.hidden) {
      // There is no such moment: the one before was the last.
      slider.value = Number(slider.value) - 1;
      writeValue(slider);
      await settled();
      break;
    }
  }
  if (playing === button) rest();
}

// The newest address is answered, be it by a question that was under way before.
async function settled() {
  await ask();
  while (document.body.hasAttribute("aria-busy")) {
    await new Promise((done) => requestAnimationFrame(done));
  }
}

function rest() {
  if (!playing) return;
  playing.textContent = "Play";
  playing.setAttribute("aria-pressed", "false");
  playing = null;
}

for (const button of controls.querySelectorAll("[data-play]")) {
  button.addEventListener("click", () => (playing === button ? rest() : play(button)));
}

controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("input", (event) => {
  rest();
  if (event.target.dataset.opens) {
    // Another file has other inputs: they come with its page.
    location.assign(`${location.pathname}?${address()}`);
    return;
  }
  writeValue(event.target);
  say("");
  ask();
});
for (const watched of [dark, narrow]) watched.addEventListener("change", () => drawAll(true));
drawAll();
document.body.dataset.ready = "1";
