// How htmx asks and swaps on this site.

// The steered run that stands beside this one changes with every move of a slider, while links keep the state in
// which they were rendered: the address bar is right, so `steer` is taken from it.
function keepSteer(url) {
  url.searchParams.delete("steer");
  for (const id of new URLSearchParams(location.search).getAll("steer")) url.searchParams.append("steer", id);
  return url.pathname + url.search;
}

document.addEventListener("htmx:configRequest", (event) => {
  const { elt, verb, formData } = event.detail;
  if (verb !== "get" || !elt.closest("#run")) return;
  formData.delete("steer");
  for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
  const path = elt.hasAttribute("data-here") ? location.pathname : event.detail.path;
  event.detail.path = keepSteer(new URL(path, location.href));
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("#run a[download]");
  if (link) link.href = keepSteer(new URL(link.href));
});

// A morph keeps what the reader did to the page. Open details stay open; a drawn figure is left to figures.js; and the
// steering panel's controls stay as they stand, for the reader may have moved them since the answer was asked for; so
// do the fields of the form that explains something else.
const CONTROLS = '#steer-form :is([type="range"], [type="checkbox"], select), #explain :is(input, select)';

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
