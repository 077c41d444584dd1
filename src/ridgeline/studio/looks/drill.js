// The clock of a question: two minutes from when the page was made; the server keeps the time.
const clock = document.getElementById("clock");
const began = performance.now();
const ALLOWED = 120;

function show() {
  const left = Math.max(0, ALLOWED - Math.floor((performance.now() - began) / 1000));
  clock.value = `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
  if (left === 0) clock.value = "0:00, half the points from here on";
  else setTimeout(show, 250);
}

show();
document.body.dataset.ready = "1";
