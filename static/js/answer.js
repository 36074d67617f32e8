// Choose a span of the answer as target: Shift and a click, or a drag across tokens. What else could be explained stays
// unfolded when the target changes.
import { go } from "./page.js";

let first = null;
let last = null;
let dragged = false;

const tokenAt = (element) => element?.closest?.("#answer .token > a[data-position]") ?? null;
const position = (link) => Number(link.dataset.position);
const links = () => [...document.querySelectorAll("#answer .token > a[data-position]")];

function mark() {
  const [low, high] = [position(first), position(last)].sort((a, b) => a - b);
  for (const link of links()) {
    const inside = dragged && position(link) >= low && position(link) <= high;
    link.parentElement.classList.toggle("picked", inside);
  }
}

/** The address of a span: its start from the first token's own address, its end from the last one's. */
function spanAddress() {
  const [low, high] = [first, last].sort((a, b) => position(a) - position(b));
  const url = new URL(low.href);
  const start = url.searchParams.get("span").split("-")[0];
  const end = new URL(high.href).searchParams.get("span").split("-")[1];
  url.searchParams.set("span", `${start}-${end}`);
  return url.pathname + url.search;
}

document.addEventListener("pointerdown", (event) => {
  const link = tokenAt(event.target);
  if (!link || event.button !== 0 || event.pointerType === "touch") return;
  first = last = link;
  dragged = false;
});

document.addEventListener("pointermove", (event) => {
  if (!first) return;
  const link = tokenAt(document.elementFromPoint(event.clientX, event.clientY));
  if (!link || link === last) return;
  last = link;
  dragged = dragged || last !== first;
  mark();
});

document.addEventListener("pointerup", () => {
  if (first && dragged && first !== last) go(spanAddress());
  if (first) {
    for (const link of links()) link.parentElement.classList.remove("picked");
  }
  first = null;
});

// In the capture phase: before htmx, which would make the clicked token alone the target.
document.addEventListener(
  "click",
  (event) => {
    const link = tokenAt(event.target);
    if (!link) return;
    if (event.shiftKey || dragged) {
      event.preventDefault();
      event.stopPropagation();
    }
    if (event.shiftKey && !dragged) go(link.dataset.extend);
    dragged = false;
  },
  true,
);

const unfolded = () => document.getElementById("explain")?.open ?? false;
let wasUnfolded = false;

document.addEventListener("htmx:beforeSwap", () => {
  wasUnfolded = unfolded();
});

document.addEventListener("htmx:afterSwap", () => {
  if (wasUnfolded && !unfolded()) document.getElementById("explain")?.setAttribute("open", "");
});
