// One key each for the common moves; none of them is the only way.
const typing = (element) =>
  element instanceof Element && element.matches('textarea, select, [contenteditable], input:not([type="range"], [type="checkbox"], [type="radio"])');

/** Through the ranked neurons, or through the latents of the table that has the focus. */
function moveNeuron(step) {
  const latents = document.activeElement.closest?.(".ranked-latents");
  const neurons = [...(latents ?? document).querySelectorAll(latents ? "a[data-latent]" : "a[data-neuron]")];
  if (!neurons.length) return;
  const row = document.activeElement.closest?.("#neurons tr, #latents tr");
  const at = neurons.findIndex((link) => row?.contains(link));
  const selected = neurons.findIndex((link) => link.hasAttribute("aria-current"));
  const next = at < 0 ? Math.max(selected, 0) : Math.min(Math.max(at + step, 0), neurons.length - 1);
  neurons[next].focus();
}

function focusSearch() {
  const field = [...document.querySelectorAll("[data-search]")].find((input) => input.offsetParent !== null);
  if (field) field.focus();
  else location.assign("/concepts");
}

const help = () => document.getElementById("help").showModal();

const moves = {
  j: () => moveNeuron(1),
  k: () => moveNeuron(-1),
  s: () => document.querySelector('#steer-form input[type="range"]')?.focus(),
  "/": focusSearch,
  "?": help,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    document.getElementById("errors").replaceChildren();
    if (typing(event.target)) event.target.blur();
    return;
  }
  if (typing(event.target) || !Object.hasOwn(moves, event.key)) return;
  event.preventDefault();
  moves[event.key]();
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-help]")) help();
});
