// Tooltips on hover and focus: values of charts (data-tip), and the full text of cells that are cut off.

const isCut = (element) => element.scrollWidth > element.clientWidth + 1;

/** Returns the full text of the cell around an element, or null if nothing of it is cut off. */
function cutText(element) {
  const cell = element.closest?.("td, .clip");
  if (!cell || cell.querySelector("table, button, input")) return null;
  return isCut(cell) || [...cell.querySelectorAll(".sub, .clip")].some(isCut) ? cell.innerText : null;
}

/** Lets the keyboard reach texts that are cut off, and no others. */
function markCutTexts() {
  for (const text of document.querySelectorAll(".clip")) {
    if (isCut(text)) text.tabIndex = 0;
    else text.removeAttribute("tabindex");
  }
}

export function tips() {
  markCutTexts();
  for (const change of ["redrive:part", "redrive:widths"]) document.addEventListener(change, markCutTexts);
  addEventListener("resize", markCutTexts);
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x + 12, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(y - height - 12, 8)}px`;
  };
  const update = (target, x, y) => {
    const text = target.closest?.("[data-tip]")?.dataset.tip ?? cutText(target);
    if (text) show(text, x, y);
    else tip.hidden = true;
  };
  document.addEventListener("pointermove", ({ target, clientX, clientY }) => update(target, clientX, clientY));
  document.addEventListener("focusin", ({ target }) => {
    const box = target.getBoundingClientRect();
    update(target, box.left, box.top);
  });
}
