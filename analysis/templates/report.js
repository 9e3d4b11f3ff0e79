"use strict";
const root = document.documentElement;
window.addEventListener("error", () => { root.dataset.errors = Number(root.dataset.errors || 0) + 1; });

const keyOf = (row, column) => {
  const cell = row.cells[column];
  const shown = cell.dataset.sort === undefined ? cell.textContent.trim() : cell.dataset.sort;
  return shown !== "" && isFinite(shown) ? Number(shown) : shown;
};

const compare = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

const sortBy = (table, column) => {
  const heading = table.tHead.rows[0].cells[column];
  const down = heading.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, column), row]);
  const known = rows.filter(([key]) => key !== "").sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
  const unknown = rows.filter(([key]) => key === "");
  table.tBodies[0].append(...[...known, ...unknown].map(([, row]) => row));
};

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    button.addEventListener("click", () => sortBy(table, column));
    heading.append(button);
  });
}

const large = document.getElementById("large");
const [largeImage, saveLink] = [large.querySelector("img"), large.querySelector("a")];
for (const button of document.querySelectorAll(".enlarge")) {
  button.addEventListener("click", () => {
    const image = button.querySelector("img");
    largeImage.src = saveLink.href = image.src;
    largeImage.alt = image.alt;
    saveLink.download = image.dataset.name + (image.src.startsWith("data:image/png") ? ".png" : ".svg");
    large.showModal();
  });
}
large.addEventListener("click", (event) => { if (!event.target.closest("a")) large.close(); });

const openTarget = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
window.addEventListener("hashchange", openTarget);
openTarget();

const images = [...document.querySelectorAll(".enlarge img")];
Promise.allSettled(images.map((image) => image.decode())).then(() => {
  root.dataset.images = images.length;
  root.dataset.broken = images.filter((image) => !(image.naturalWidth > 0 && image.naturalHeight > 0)).length;
  root.dataset.ready = "true";
});
