// Everything here improves on a page that already works as links and forms.
import "./answer.js";
import "./ask.js";
import "./box.js";
import "./compare.js";
import "./copy.js";
import "./errors.js";
import "./figures.js";
import "./keys.js";
import "./picture.js";
import "./requests.js";
import "./steer.js";
import "./sweep.js";
import { remember } from "./page.js";

document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-theme-toggle]")) return;
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  remember("theme", root.dataset.theme);
  document.dispatchEvent(new Event("sfumato:theme"));
});
