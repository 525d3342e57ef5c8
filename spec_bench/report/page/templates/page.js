// Sorting, choosing and copying. Without it the page shows everything.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, index) => head.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") === "descending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[index];
      if (!cell) return null;
      if (cell.dataset.value === undefined) return cell.textContent;
      return cell.dataset.value === "" ? null : Number(cell.dataset.value);
    };
    const rows = [...body.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number"
        ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
      return up ? order : -order;
    });
    body.append(...rows);
  }));
}
const filters = [...document.querySelectorAll("select[data-filter]")];
const apply = () => {
  for (const part of document.querySelectorAll("[data-pair]")) {
    part.hidden = filters.some((f) => f.value && part.dataset[f.dataset.filter] !== f.value);
  }
};
filters.forEach((f) => f.addEventListener("change", apply));
const search = document.querySelector("input[data-decoders]");
search?.addEventListener("input", () => {
  const asked = search.value.toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);
  for (const row of document.querySelectorAll("table.sortable tbody tr:not(.baseline)")) {
    const name = ` ${row.cells[0].textContent.toLowerCase()}`;
    row.hidden = asked.length > 0 && !asked.some((word) => name.includes(` ${word}`));
  }
});
for (const block of document.querySelectorAll("pre.command")) {
  if (!navigator.clipboard) break;
  const text = block.textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  block.append(button);
}
