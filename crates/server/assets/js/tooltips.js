// Tooltips of charts on hover and focus, for elements with data-tip.

export function tips() {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const show = (target, x, y) => {
    tip.textContent = target.dataset.tip;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(x + 12, innerWidth - width - 8)}px`;
    tip.style.top = `${Math.max(y - height - 12, 8)}px`;
  };
  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest?.("[data-tip]");
    if (target) show(target, event.clientX, event.clientY);
    else tip.hidden = true;
  });
  document.addEventListener("focusin", (event) => {
    const target = event.target.closest?.("[data-tip]");
    if (!target) return void (tip.hidden = true);
    const box = target.getBoundingClientRect();
    show(target, box.left, box.top);
  });
}
