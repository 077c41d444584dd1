// Tables that sort by a column, filter by words, and show their first rows until asked for more.

// On a phone, where a row is several lines high, half as many.
const FIRST_ROWS = matchMedia("(max-width: 640px)").matches ? 6 : 12;

// A number means a rank, a step: it is looked for among the words of a row, not in its figures.
function matches(row, wanted) {
  if (wanted === "") return true;
  const text = (cell) => cell.textContent.toLowerCase();
  if (!/^\d+$/.test(wanted)) return [...row.cells].some((cell) => text(cell).includes(wanted));
  return [...row.cells].some((cell) => !cell.classList.contains("number")
    && text(cell).split(/\D+/).includes(wanted));
}

function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const around = table.closest(".searched");
  const filter = around.querySelector(".filter");
  const more = button("", "Show all rows", () => { open = !open; show(); });
  let open = body.rows.length <= FIRST_ROWS + 3;
  const folds = !open;

  function show() {
    const wanted = filter === null ? "" : filter.value.trim().toLowerCase();
    let count = 0;
    for (const row of body.rows) {
      const hit = matches(row, wanted);
      count += hit ? 1 : 0;
      row.hidden = !hit || (!open && count > FIRST_ROWS);
    }
    more.hidden = !folds || count <= FIRST_ROWS;
    more.textContent = open ? "Show fewer rows" : `Show all ${count} rows`;
  }

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
    show();
  }

  heads.forEach((head, index) => {
    head.addEventListener("click", () => sort(index));
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(index); });
  });
  if (filter !== null) filter.addEventListener("input", show);
  if (folds) around.append(more);
  show();
}
