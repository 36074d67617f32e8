// Sliders and switches of the steering panel. The form's own fields are the sliders; a switch only moves its slider.
import { announce, onChange } from "./page.js";

const rowsOf = (form) => [...form.querySelectorAll(".turn-row")];
const sliderOf = (row) => row.querySelector('input[type="range"]');

/** Show a row as its slider stands. `data-one` turns λ into the multiplier of a full member: 1 + λ. */
function show(row) {
  const slider = sliderOf(row);
  const on = Number(slider.value) !== Number(slider.dataset.alone);
  const multiplier = Number(slider.value) + Number(slider.dataset.one);
  const text = on ? `×${multiplier.toFixed(1).replace("-", "−")}` : "–";
  row.classList.toggle("on", on);
  row.classList.toggle("down", on && multiplier < 1);
  row.classList.toggle("up", on && multiplier > 1);
  row.querySelector("output").value = text;
  row.querySelector("[data-switch]").checked = on;
  slider.setAttribute("aria-valuetext", on ? text : "alone");
}

const stateOf = (form) => JSON.stringify([...new FormData(form)]);

function send(form, always = false, now = always) {
  const state = stateOf(form);
  if (!always && state === form.dataset.sent) return;
  form.dataset.sent = state;
  window.htmx.trigger(form, now ? "steer-now" : "steer"); // a dragged slider rests a moment, a switch does not
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("#steer-form");
  if (!form || event.target.type !== "range") return;
  show(event.target.closest(".turn-row"));
  send(form);
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("#steer-form");
  if (!form) return;
  if (event.target.matches("[data-switch]")) {
    const slider = sliderOf(event.target.closest(".turn-row"));
    if (event.target.checked) {
      slider.value = slider.dataset.last ?? event.target.dataset.default;
    } else {
      slider.dataset.last = slider.value;
      slider.value = slider.dataset.alone;
    }
    show(slider.closest(".turn-row"));
  }
  send(form, false, event.target.matches("[data-switch]"));
});

document.addEventListener("click", (event) => {
  const form = document.getElementById("steer-form");
  if (!form || !event.target.closest("[data-reset]")) return;
  event.preventDefault();
  for (const row of rowsOf(form)) {
    sliderOf(row).value = sliderOf(row).dataset.alone;
    show(row);
  }
  send(form, true);
  announce("All concepts and neurons are left alone.");
});

// A click on a neuron's + adds it to the panel; the reader is told, and taken to the new slider.
let added = null;
document.addEventListener("submit", (event) => {
  const field = event.target.querySelector("#steer-add");
  if (field) added = field.value.trim();
});
document.addEventListener("click", (event) => {
  added = event.target.closest("[data-add]")?.dataset.add ?? added;
});

onChange(() => {
  const form = document.getElementById("steer-form");
  if (!form) return;
  for (const row of rowsOf(form)) show(row);
  form.dataset.sent ??= stateOf(form);
  const names = [`concept:${added}`, `neuron:${added}`];
  const fresh = added && rowsOf(form).find((row) => names.includes(sliderOf(row).name));
  if (!fresh) return;
  added = null;
  document.getElementById("steer-add").value = "";
  sliderOf(fresh).focus();
  announce("Added to the steering panel.");
});
