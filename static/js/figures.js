// Figures come as JSON beside their place. Plotly (1.5 MB) is fetched when the first of them comes into view.
import { onChange } from "./page.js";

let plotly = null;
const drawn = new WeakMap();
const linked = new WeakSet();

function load() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("../vendor/plotly-cartesian-4.1.1.min.js", import.meta.url);
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", reject);
    document.head.append(script);
  });
  return plotly;
}

/** Colours of the present theme, resolved by the browser to a form that Plotly reads. */
function colours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const found = {};
  for (const name of ["ink", "soft", "line", "well", "card", "for", "against", "gold"]) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

/** A line or cloud in one colour, and the area under it in a breath of the same. */
function painted(trace, color) {
  const fillcolor = color.replace("rgb(", "rgba(").replace(")", ", 0.13)");
  return { ...trace, line: { ...trace.line, color }, marker: { ...trace.marker, color }, fillcolor };
}

function themed(figure, colour, font) {
  const data = figure.data.map((trace) => {
    if (trace.type === "scatter") return painted(trace, colour[trace.meta]);
    if (trace.type !== "heatmap") return { ...trace, marker: { ...trace.marker, color: colour.gold } };
    // Memberships go from nothing to gold; signed values from rust over nothing to teal.
    const colorscale = trace.meta === "membership"
      ? [[0, colour.well], [1, colour.gold]]
      : [[0, colour.against], [0.5, colour.well], [1, colour.for]];
    // Hairlines between cells help few positions and would hide many. (Without any gap plotly would draw the map as one
    // picture with a style of its own, which the content security policy refuses.)
    const [rows, columns] = trace.z.shape?.split(",").map(Number) ?? [trace.z.length, trace.z[0]?.length];
    const xgap = columns > 60 ? 0 : 1;
    const ygap = rows > 60 ? 0.01 : 1;
    return { ...trace, colorscale, xgap, ygap, showscale: false, hoverongaps: false };
  });
  const axis = (given) => ({ ...given, gridcolor: colour.line, linecolor: colour.line, zerolinecolor: colour.line, fixedrange: true });
  const layout = {
    ...figure.layout,
    autosize: true,
    margin: { l: 44, r: 4, t: 6, b: 32, ...figure.layout.margin },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { ...figure.layout.font, family: font, size: 11, color: colour.soft },
    hoverlabel: { bgcolor: colour.card, bordercolor: colour.line, font: { family: font, color: colour.ink } },
    xaxis: { ...axis(figure.layout.xaxis), showgrid: false },
    yaxis: axis(figure.layout.yaxis),
  };
  delete layout.width;
  delete layout.height;
  return { data, layout };
}

async function draw(place) {
  const text = document.getElementById(place.dataset.figure)?.textContent;
  const key = `${text}${document.documentElement.dataset.theme}${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (!text || drawn.get(place) === key) return;
  drawn.set(place, key);
  const Plotly = await load();
  const { data, layout } = themed(JSON.parse(text), colours(), getComputedStyle(document.body).fontFamily);
  place.classList.add("drawn");
  await Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
  place.dispatchEvent(new CustomEvent("sfumato:drawn", { bubbles: true }));
  if (linked.has(place)) return;
  linked.add(place);
  place.on("plotly_click", ({ points: [{ x, pointIndex }] }) => {
    if (place.dataset.cells !== undefined) openCell(place, pointIndex);
    else place.dispatchEvent(new CustomEvent("sfumato:point", { bubbles: true, detail: { x } }));
  });
}

/** A cell of a map of concepts leads to both of them in algebra; on the diagonal, to the one. */
function openCell(place, [row, column]) {
  const names = place.layout.meta.spelled;
  const expression = row === column ? names[row] : `${names[row]} AND ${names[column]}`;
  location.assign(`/algebra?expression=${encodeURIComponent(expression)}`);
}

const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
});

function refresh() {
  for (const place of document.querySelectorAll("[data-figure]")) {
    // Observing again reports the present state, so that a figure whose numbers changed is drawn anew if in view.
    watch.unobserve(place);
    watch.observe(place);
  }
}

onChange(refresh);
document.addEventListener("sfumato:theme", refresh);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
