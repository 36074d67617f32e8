// Sliders and switches of the steering panel. The form's own fields are the sliders; a switch only moves its slider.
import { announce, onChange } from "./page.js";

const rowsOf = (form) => [...form.querySelectorAll(".turn-row")];
const sliderOf = (row) => row.querySelector('input[type="range"]');

const numberOf = (row) => row.querySelector('input[type="number"]');
const operationOf = (row) => row.querySelector('select[name^="operation:"]')?.value ?? "scale";
const signed = (value) => `${value < 0 ? "−" : ""}${Number(Math.abs(value).toPrecision(4))}`;
const SIGNS = { add: "+", set: "=" };

/** [it is turned, the edit in short, 1 or −1 when it turns up or down]. `data-one` turns λ into the multiplier of a full
 * member: 1 + λ. What is added or set stands in a field; an empty one leaves the neuron alone. */
function edit(row) {
  const operation = operationOf(row);
  if (operation === "scale") {
    const slider = sliderOf(row);
    const multiplier = Number(slider.value) + Number(slider.dataset.one);
    return [
      Number(slider.value) !== Number(slider.dataset.alone),
      `×${multiplier.toFixed(1).replace("-", "−")}`,
      Math.sign(multiplier - 1),
    ];
  }
  const field = numberOf(row);
  const value = Number(field.value);
  const on = field.value !== "" && !(operation === "add" && value === 0);
  const sign = operation === "add" && value < 0 ? "" : SIGNS[operation];
  return [on, `${sign}${signed(value)}`, operation === "add" ? Math.sign(value) : 0];
}

/** Show a row as its controls stand. */
function show(row) {
  const [on, text, way] = edit(row);
  row.classList.toggle("on", on);
  row.classList.toggle("down", on && way < 0);
  row.classList.toggle("up", on && way > 0);
  row.querySelector("output").value = on ? text : "–";
  row.querySelector("[data-switch]").checked = on;
  sliderOf(row).setAttribute("aria-valuetext", on ? text : "alone");
}

/** Leave a row alone, and keep how it stood for the next time. */
function alone(row) {
  const control = operationOf(row) === "scale" ? sliderOf(row) : numberOf(row);
  control.dataset.last = control.value;
  control.value = control.dataset.alone ?? "";
}

/** Turn a row as it stood last, or as is usual: suppress a concept, silence a neuron, add its peak, set a latent to it. */
function turn(row, usual) {
  const operation = operationOf(row);
  const control = operation === "scale" ? sliderOf(row) : numberOf(row);
  const peak = operation === "add" || (operation === "set" && row.classList.contains("latent"));
  const first = peak ? control.dataset.usual : usual;
  control.value = control.dataset.last || first;
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
  if (!form || !event.target.matches('[type="range"], [type="number"]')) return;
  show(event.target.closest(".turn-row"));
  if (event.target.type === "range") send(form); // a number is sent when it is complete: on change
});

document.addEventListener("change", (event) => {
  const form = event.target.closest("#steer-form");
  if (!form) return;
  const row = event.target.closest(".turn-row");
  if (event.target.matches("[data-switch]")) {
    if (event.target.checked) turn(row, event.target.dataset.default);
    else alone(row);
  }
  if (row) show(row);
  send(form, false, event.target.matches("[data-switch]"));
});

document.addEventListener("click", (event) => {
  const form = document.getElementById("steer-form");
  if (!form || !event.target.closest("[data-reset]")) return;
  event.preventDefault();
  for (const row of rowsOf(form)) {
    sliderOf(row).value = sliderOf(row).dataset.alone;
    if (numberOf(row)) numberOf(row).value = "";
    show(row);
  }
  send(form, true);
  announce("All concepts, neurons and latents are left alone.");
});

// A click on a neuron's + adds it to the panel; the reader is told, and taken to the new slider. Who removes one is taken
// to the field that adds. Latents that are swapped in are shown, below the concepts.
let added = null;
let dropped = null;
let swapped = false;
document.addEventListener("submit", (event) => {
  swapped ||= Boolean(event.target.closest("#latents-swap"));
  const field = event.target.querySelector("#steer-add");
  if (field) added = field.value.trim();
});
document.addEventListener("click", (event) => {
  added = event.target.closest("[data-add]")?.dataset.add ?? added;
  dropped = event.target.closest('#steer-form [name="drop"]')?.value ?? dropped;
});

onChange(() => {
  const form = document.getElementById("steer-form");
  if (!form) return;
  for (const row of rowsOf(form)) show(row);
  form.dataset.sent ??= stateOf(form);
  if (dropped && !rowsOf(form).some((row) => row.dataset.field === dropped)) {
    dropped = null;
    document.getElementById("steer-add").focus();
    announce("Removed from the steering panel.");
  }
  const first = swapped && form.querySelector(".turn-row.latent.on");
  if (first) {
    swapped = false;
    document.getElementById("steer-scroll").scrollTop = first.offsetTop - form.querySelector(".turns").offsetTop;
    announce("The other run’s latents are in the steering panel.");
  }
  const names = [`concept:${added}`, `neuron:${added}`, `latent:${added}`];
  const fresh = added && rowsOf(form).find((row) => names.includes(sliderOf(row).name));
  if (!fresh) return;
  added = null;
  document.getElementById("steer-add").value = "";
  sliderOf(fresh).focus();
  announce("Added to the steering panel.");
});

// The menu of presets: Enter in the name saves, Escape and a click elsewhere close it.
const menuOf = () => document.getElementById("presets");

document.addEventListener("keydown", (event) => {
  const menu = menuOf();
  if (!menu?.open || !menu.contains(event.target)) return;
  if (event.key === "Escape") {
    menu.open = false;
    menu.querySelector("summary").focus();
  } else if (event.key === "Enter" && event.target.id === "preset-name") {
    event.preventDefault();
    menu.querySelector("[data-save-preset]").click();
  }
});

document.addEventListener("click", (event) => {
  const menu = menuOf();
  if (menu?.open && event.target.isConnected && !menu.contains(event.target)) menu.open = false;
});

document.addEventListener("htmx:afterRequest", (event) => {
  if (!event.target.closest?.("[data-save-preset]") || !event.detail.successful) return;
  const field = document.getElementById("preset-name");
  announce(`Saved as ${field.value}.`);
  field.value = "";
});
