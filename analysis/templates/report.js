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

const modelOf = (element) => {
  const marked = element.closest('[data-model], [id*="-series."], [id*="-legend."]');
  return marked && (marked.dataset.model || marked.id.split(/-(?:series|legend)\./)[1].split(".")[0]);
};
const partsOf = (model) =>
  document.querySelectorAll(`[data-model="${model}"], .enlarge [id*="-series.${model}."], .enlarge [id*="-legend.${model}."]`);
const light = (model) => {
  for (const part of document.querySelectorAll(".lit")) part.classList.remove("lit");
  root.classList.toggle("lighting", Boolean(model));
  if (model) for (const part of partsOf(model)) part.classList.add("lit");
};
const toggle = (model) => { for (const part of partsOf(model)) part.classList.toggle("hidden"); };
document.addEventListener("pointerover", (event) => light(modelOf(event.target)));
document.addEventListener("focusin", (event) => light(modelOf(event.target)));
document.addEventListener("focusout", () => light(null));

const large = document.getElementById("large");
const [largeImage, saveLink] = [large.querySelector("img"), large.querySelector("a")];
const asImage = (svg) => {
  const [copy, box] = [svg.cloneNode(true), svg.viewBox.baseVal];
  for (const part of copy.querySelectorAll('[id*="-series."].hidden')) part.remove();
  copy.setAttribute("width", box.width);
  copy.setAttribute("height", box.height);
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
};
const enlarge = (place) => {
  const shown = place.firstElementChild;
  largeImage.src = saveLink.href = shown instanceof SVGElement ? asImage(shown) : shown.src;
  largeImage.alt = place.getAttribute("aria-label");
  saveLink.download = place.dataset.name + (shown instanceof SVGElement ? ".svg" : ".png");
  large.showModal();
};
const act = (event) => {
  const chosen = event.target.closest('[data-model], .enlarge [id*="-legend."]');
  const place = event.target.closest(".enlarge");
  if (chosen) toggle(modelOf(chosen));
  else if (place) enlarge(place);
};
document.addEventListener("click", act);
document.addEventListener("keydown", (event) => {
  if ((event.key === "Enter" || event.key === " ") && event.target.matches("[data-model], .enlarge")) {
    event.preventDefault();
    act(event);
  }
});
large.addEventListener("click", (event) => { if (!event.target.closest("a")) large.close(); });

const openTarget = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
window.addEventListener("hashchange", openTarget);
openTarget();

const images = [...document.querySelectorAll(".enlarge img")];
Promise.allSettled(images.map((image) => image.decode())).then(() => {
  root.dataset.images = document.querySelectorAll(".enlarge > :is(svg, img)").length;
  root.dataset.broken = images.filter((image) => !(image.naturalWidth > 0 && image.naturalHeight > 0)).length;
  root.dataset.ready = "true";
});
