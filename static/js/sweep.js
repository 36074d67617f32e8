// The chart of a sweep and the panel it was swept from: a click on a point moves the row's slider, and steer.js sends
// it; the value at which the panel stands is marked, while all else in the panel is as it was swept.
import { announce, onChange } from "./page.js";

const card = () => document.querySelector("#sweep[data-row]");

/** The control of the row that was swept: its slider, or the number that a latent is set to. undefined where the panel
 * has no such row, null where it turns it otherwise. */
function controlOf({ row, operation }) {
  const slider = document.querySelector(`#steer-form input[type="range"][name="${CSS.escape(row)}"]`);
  const line = slider?.closest(".turn-row");
  if (!line) return undefined;
  if ((line.querySelector('select[name^="operation:"]')?.value ?? operation) !== operation) return null;
  return operation === "scale" ? slider : line.querySelector('input[type="number"]');
}

/** Move the control as a hand would; false where there is none. */
function turn(value) {
  const control = controlOf(card().dataset);
  if (!control || control.disabled) return false;
  control.value = value;
  control.dispatchEvent(new Event("input", { bubbles: true }));
  control.dispatchEvent(new Event("change", { bubbles: true }));
  announce(`${card().querySelector("h2").textContent}: turned to ${value}.`);
  return true;
}

/** Layers as FIRST-LAST; '' for all of them. */
function layersOf(pairs) {
  const given = pairs.filter(([name]) => name === "layers").map(([, value]) => value);
  const [first, last = first] = given.join("-").split("-");
  const end = document.querySelector("#steer-last option:last-child")?.value;
  return !first || (first === "0" && last === end) ? "" : `${first}-${last}`;
}

/** What form fields ask for apart from one row, in one spelling. */
function settings(pairs, row) {
  const given = new Map(pairs);
  const found = [`positions ${given.get("positions") || "all"}`, `layers ${layersOf(pairs)}`];
  for (const [name, standing] of pairs) {
    const [, kind, place] = /^(concept|neuron|latent):(.*)$/.exec(name) ?? [];
    if (name === row || !kind) continue;
    const operation = kind === "concept" ? "λ" : given.get(`operation:${place}`) || "scale";
    const value = ["add", "set"].includes(operation) ? (given.get(`value:${place}`) ?? standing) : standing;
    const alone = { λ: 0, add: 0, scale: 1 }[operation];
    if (value !== "" && Number(value) !== alone) found.push(`${name} ${operation} ${Number(value)}`);
  }
  return found.sort().join("\n");
}

/** Does the panel ask for what was swept, apart from the row? */
function asSwept(form) {
  const { row, others } = card().dataset;
  return settings([...new FormData(form)], row) === settings(JSON.parse(others), row);
}

function mark() {
  const form = document.getElementById("steer-form");
  if (!card() || !form) return;
  const control = controlOf(card().dataset);
  if (control === undefined) return;
  const same = Boolean(control) && control.value !== "" && asSwept(form);
  card().querySelector(".apart-note").hidden = same;
  for (const line of card().querySelectorAll("tr[data-at]")) {
    const at = same && Number(line.dataset.at) === Number(control.value);
    if (at !== line.hasAttribute("aria-current")) line.toggleAttribute("aria-current", at);
    if (at) line.setAttribute("aria-current", "true");
  }
  const plot = card().querySelector(".plot.drawn");
  const now = same ? [Number(control.value), Number(control.value)] : [];
  if (!plot?.data || String(plot.data[2]?.x) === String(now)) return;
  window.Plotly.restyle(plot, { x: [now], y: [now.map((_, end) => end)] }, [2]);
}

document.addEventListener("sfumato:point", (event) => {
  if (event.target.closest("#sweep")) turn(event.detail.x);
});
document.addEventListener("sfumato:drawn", (event) => {
  if (event.target.closest("#sweep")) mark();
});
document.addEventListener("input", (event) => {
  if (event.target.closest("#steer-form")) mark();
});
document.addEventListener("change", (event) => {
  if (event.target.closest("#steer-form")) mark();
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("#sweep tr[data-at] button");
  if (button && turn(button.value)) event.preventDefault();
});

// A card that was asked for below the window's edge is brought into it.
let asked = false;
document.addEventListener("htmx:beforeRequest", (event) => {
  asked ||= event.detail.elt.matches("#steer-form [name='row']");
});
onChange(() => {
  mark();
  if (!asked || !card()) return;
  asked = false;
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  card().scrollIntoView({ block: "nearest", behavior });
});
