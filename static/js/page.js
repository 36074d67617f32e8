// What several modules need of the page.

/** Run `refresh` now and whenever a part of the page has been replaced. It must be safe to run twice. */
export function onChange(refresh) {
  refresh();
  for (const name of ["htmx:afterSettle", "htmx:oobAfterSwap", "htmx:sseMessage"]) {
    document.addEventListener(name, () => refresh());
  }
}

/** Say something to screen readers. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

/** Keep a preference in this browser, where that is allowed. */
export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Without storage the preference lasts as long as the page.
  }
}

/** Go to another target of this run: the whole of #run is replaced and the address follows. */
export function go(url) {
  const run = document.getElementById("run");
  if (!run || run.hasAttribute("sse-connect")) {
    location.assign(url);
    return;
  }
  window.htmx.ajax("GET", url, { source: run, target: run, select: "#run", swap: "outerHTML", push: "true" });
}
