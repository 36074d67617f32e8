// The chart of a sweep and the panel it was swept from: a click on a point moves the row's slider, and steer.js sends
// it; the value at which the panel stands is marked, while all else in the panel is as it was swept.
import { announce, onChange } from "./page.js";

const card = () => document.querySelector("#sweep[data-row]");
const sliderOf = (name) => document.querySelector(`#steer-form input[type="range"][name="${CSS.escape(name)}"]`);

/** Move the slider as a hand would; false where the panel has no such row. */
function turn(value) {
  const slider = sliderOf(card().dataset.row);
  if (!slider || slider.disabled) return false;
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  slider.dispatchEvent(new Event("change", { bubbles: true }));
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
    const [kind, place] = [name.slice(0, name.indexOf(":")), name.slice(name.indexOf(":") + 1)];
    if (name === row || !["concept", "neuron"].includes(kind)) continue;
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
  const slider = card() && form && sliderOf(card().dataset.row);
  if (!slider) return;
  const same = asSwept(form);
  card().querySelector(".apart-note").hidden = same;
  for (const line of card().querySelectorAll("tr[data-at]")) {
    const at = same && Number(line.dataset.at) === Number(slider.value);
    if (at !== line.hasAttribute("aria-current")) line.toggleAttribute("aria-current", at);
    if (at) line.setAttribute("aria-current", "true");
  }
  const plot = card().querySelector(".plot.drawn");
  const now = same ? [Number(slider.value), Number(slider.value)] : [];
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
