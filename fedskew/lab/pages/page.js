"use strict";
const root = document.documentElement;
const stored = (value) => {  // a page from a file may have no storage
  try { return value ? localStorage.setItem("theme", value) : localStorage.getItem("theme"); } catch { return null; }
};
if (stored()) root.dataset.theme = stored();

addEventListener("DOMContentLoaded", () => {
  const toggle = document.getElementById("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { toggle.textContent = dark() ? "Light" : "Dark"; };
  toggle.hidden = false;
  toggle.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; stored(root.dataset.theme); name(); });
  name();

  // Tables: a click on a header sorts by it, another click the other way round; empty cells stay at the end.
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const th = button.parentElement, body = th.closest("table").tBodies[0];
      const sign = th.ariaSort === "ascending" ? -1 : 1;
      for (const other of th.parentElement.children) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const value = (row) => { const cell = row.cells[th.cellIndex]; return cell.dataset.v ?? cell.textContent; };
      const order = (a, b) => {
        const x = value(a), y = value(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        const number = x - y;
        return sign * (Number.isNaN(number) ? x.localeCompare(y) : number);
      };
      body.append(...[...body.rows].sort(order));
    });
  }

  // Tips of cells: under the pointer, or of the cell that has the focus.
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (cell, x, y) => {
    tip.textContent = cell.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18) + "px";
  };
  const point = (event) => {
    const found = event.target.closest?.("[data-tip]");
    if (found) show(found, event.clientX, event.clientY); else hide();
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  const place = (cell) => { const box = cell.getBoundingClientRect(); show(cell, box.left + box.width / 2, box.top + box.height / 2); };
  const scrolled = () => {  // what has the focus keeps its tip: getting there by key is what scrolled
    const focused = document.activeElement;
    if (!tip.hidden && focused.matches("td[data-tip]")) place(focused); else hide();
  };
  document.addEventListener("scroll", scrolled, { passive: true, capture: true });
  document.addEventListener("focusin", (event) => { if (event.target.matches("td[data-tip]:focus-visible")) place(event.target); });
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
});
