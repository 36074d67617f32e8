// The overlay's strength, and the picture shown large.
import { onChange, remember } from "./page.js";

const root = document.documentElement;
const ZOOMS = [1, 2, 4, 8];

onChange(() => {
  const slider = document.querySelector("[data-overlay]");
  if (slider) slider.value = Math.round(100 * Number.parseFloat(getComputedStyle(root).getPropertyValue("--overlay")));
});

document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-overlay]")) return;
  root.style.setProperty("--overlay", event.target.value / 100);
  remember("overlay", event.target.value / 100);
});

function button(text, label, press) {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", className: "small", textContent: text, onclick: press });
  made.setAttribute("aria-label", label);
  return made;
}

// The frame grows, and the pane around it scrolls: picture and overlay stay one box, so they lie on each other at every
// zoom. What is under the point (x, y) of the window stays there.
function zoomable(dialog, pane, frame, said) {
  let level = 0;
  return (step, x = innerWidth / 2, y = innerHeight / 2) => {
    level = Math.min(Math.max(level + step, 0), ZOOMS.length - 1);
    const before = frame.getBoundingClientRect();
    const [across, down] = [(x - before.left) / before.width, (y - before.top) / before.height];
    dialog.style.setProperty("--zoom", ZOOMS[level]);
    const after = frame.getBoundingClientRect();
    pane.scrollLeft += after.left + across * after.width - x;
    pane.scrollTop += after.top + down * after.height - y;
    said.textContent = `${ZOOMS[level]}×`;
  };
}

function showLarge(small) {
  const frame = small.cloneNode(true);
  for (const element of [frame, ...frame.querySelectorAll("[id]")]) element.removeAttribute("id");
  const image = frame.querySelector("img");
  const [dialog, bar, pane] = ["dialog", "div", "div"].map((name) => document.createElement(name));
  const said = document.createElement("output");
  const zoom = zoomable(dialog, pane, frame, said);
  Object.assign(dialog, { className: "large", ariaLabel: "The picture, large" });
  dialog.style.setProperty("--ratio", image.getAttribute("width") / image.getAttribute("height"));
  Object.assign(bar, { className: "bar-of-zoom" });
  bar.append(
    button("−", "Smaller", () => zoom(-1)),
    said,
    button("+", "Larger", () => zoom(1)),
    button("Close", "Close", () => dialog.close()),
  );
  Object.assign(pane, { className: "pane", tabIndex: 0, role: "region", ariaLabel: "Picture and heat map" });
  pane.append(frame);
  dialog.append(bar, pane);
  dialog.addEventListener("keydown", (event) => {
    const step = { "+": 1, "=": 1, "-": -1, 0: -ZOOMS.length }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    zoom(step);
  });
  pane.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // without it the wheel scrolls; a pinch on a touchpad counts as with it
    event.preventDefault();
    zoom(-Math.sign(event.deltaY), event.clientX, event.clientY);
  }, { passive: false });
  pane.addEventListener("click", (event) => {
    if (event.target === pane) dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  zoom(0);
  pane.focus();
}

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-zoom]");
  if (pressed) showLarge(pressed.closest(".frame"));
});
