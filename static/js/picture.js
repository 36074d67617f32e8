// The overlay's strength, and the picture shown large.
import { onChange, remember } from "./page.js";

const root = document.documentElement;

onChange(() => {
  const slider = document.querySelector("[data-overlay]");
  if (slider) slider.value = Math.round(100 * Number.parseFloat(getComputedStyle(root).getPropertyValue("--overlay")));
});

document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-overlay]")) return;
  root.style.setProperty("--overlay", event.target.value / 100);
  remember("overlay", event.target.value / 100);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-zoom]");
  if (!button) return;
  const frame = button.closest(".frame").cloneNode(true);
  for (const element of [frame, ...frame.querySelectorAll("[id]")]) element.removeAttribute("id");
  const dialog = document.createElement("dialog");
  dialog.className = "large";
  dialog.append(frame);
  dialog.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
});
