// Errors of the server are swapped into #errors by htmx; those of the connection are said here.
const region = document.getElementById("errors");

function say(headline, message) {
  const box = document.createElement("section");
  box.className = "error card";
  const title = document.createElement("h2");
  title.textContent = headline;
  const text = document.createElement("p");
  text.textContent = message;
  box.append(title, text);
  region.replaceChildren(box);
}

for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => say("No answer", "The server does not answer. What you see is as it was; try again in a moment."));
}
document.addEventListener("htmx:sseError", () => {
  if (document.visibilityState === "visible") say("Connection lost", "The stream broke off. The page tries again by itself.");
});
document.addEventListener("htmx:sseOpen", () => region.replaceChildren());
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful && event.target.id !== "model-now") region.replaceChildren();
});
