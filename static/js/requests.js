// How htmx asks and swaps on this site.

// The steered run that stands beside this one changes with every move of a slider, and so does a sweep, while links and
// forms keep the state in which they were rendered: the address bar is right, so both are taken from it.
const KEPT = ["steer", "sweep"];

function keep(fields, names) {
  for (const name of names) {
    fields.delete(name);
    for (const id of new URLSearchParams(location.search).getAll(name)) fields.append(name, id);
  }
}

function keepSteer(url) {
  keep(url.searchParams, KEPT);
  return url.pathname + url.search;
}

document.addEventListener("htmx:configRequest", (event) => {
  const { elt, verb, formData } = event.detail;
  if (verb === "post" && elt.closest("#steer-form, #sweep")) keep(formData, KEPT);
  if (verb === "post" && elt.closest("#latents")) keep(formData, [...KEPT, "add"]);
  if (elt.id === "steer-form") {
    // The panel is sent: not the button that was pressed last, as htmx would have it. Buttons ask for themselves.
    event.detail.path = elt.getAttribute("hx-post");
    for (const name of ["row", "drop"]) formData.delete(name);
  }
  if (verb !== "get" || !elt.closest("#run")) return;
  for (const name of KEPT) formData.delete(name);
  for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  const path = elt.hasAttribute("data-here") ? location.pathname : event.detail.path;
  const url = new URL(path, location.href);
  if (elt.closest("#latents")) {
    // This card is not rendered anew with the panel: what was added to that meanwhile is in the address alone.
    keep(url.searchParams, ["add"]);
    if (elt.dataset.add) url.searchParams.append("add", elt.dataset.add);
  }
  event.detail.path = keepSteer(url);
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("#run a[download]");
  if (link) link.href = keepSteer(new URL(link.href));
});

// The SSE extension listens once more whenever a morph changes an element's attributes: a message is swapped in once.
const heard = new WeakMap();
document.addEventListener("htmx:sseBeforeMessage", (event) => {
  const targets = heard.get(event.detail) ?? new Set();
  if (targets.has(event.target.id)) event.preventDefault();
  heard.set(event.detail, targets.add(event.target.id));
});

// A morph keeps what the reader did to the page. Open details stay open; a drawn figure is left to figures.js; and the
// steering panel's controls stay as they stand, for the reader may have moved them since the answer was asked for; so
// do the fields of the form that explains something else.
const CONTROLS = '#steer-form :is([type="range"], [type="checkbox"], [type="number"], select), #preset-name, #explain :is(input, select)';

function keepField(field, fresh) {
  for (const name of ["aria-invalid", "aria-describedby"]) {
    if (fresh.hasAttribute(name)) field.setAttribute(name, fresh.getAttribute(name));
    else field.removeAttribute(name);
  }
}

function mayMorph(old, fresh) {
  if (!(old instanceof Element && fresh instanceof Element)) return true;
  if (old.id === "steer-add") keepField(old, fresh);
  return !(old.matches(`${CONTROLS}, #steer-add`) || (old.matches(".plot.drawn") && fresh.matches("[data-figure]")));
}

if (window.Idiomorph) {
  Object.assign(window.Idiomorph.defaults.callbacks, {
    beforeAttributeUpdated: (name, element) => !(name === "open" && element.tagName === "DETAILS"),
    beforeNodeMorphed: mayMorph,
  });
}
