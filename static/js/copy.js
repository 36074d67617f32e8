// Copy a text or the address of the present state.
import { announce } from "./page.js";

async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Outside a secure context there is no clipboard interface; a selected field still copies.
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy], [data-copy-link]");
  if (!button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const source = button.dataset.copy && document.getElementById(button.dataset.copy);
  const label = button.textContent;
  try {
    await copy(source ? source.textContent : location.href);
    button.textContent = "copied";
    announce("Copied.");
  } catch {
    button.textContent = "not allowed";
  }
  setTimeout(() => {
    button.textContent = label;
  }, 1500);
});
