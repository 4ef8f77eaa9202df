// What is selected, in the address after #, so that every view can be linked to and Back works.
import { useEffect, useState } from "preact/hooks";
import { bySlowest, data, graphsBySlowest, kernels } from "./model.js";

export const VIEWS = ["overview", "graph", "schedule", "kernel", "timeline", "memory", "gradient"];

const start = {
  view: "overview", kernel: bySlowest.length ? bySlowest[0].id : -1,
  graph: graphsBySlowest.length ? graphsBySlowest[0] : -1, line: -1, node: -1, pass: "", tab: "passes",
};
const NUMBERS = ["kernel", "graph", "line", "node"];

function read() {
  const found = { ...start };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(key in start)) continue;
    found[key] = NUMBERS.includes(key) ? parseInt(value, 10) : value;
  }
  if (!VIEWS.includes(found.view)) found.view = "overview";
  if (!(found.kernel in kernels)) found.kernel = start.kernel;
  if (!(found.graph in data.graphs)) found.graph = start.graph;
  if (!(found.line in data.lines)) found.line = -1;
  return found;
}

let current = read();
const listeners = new Set();

// Change what is selected. Selecting a kernel selects its line and graph too.
export function select(change) {
  const next = { ...current, ...change };
  if (change.kernel !== undefined && change.kernel >= 0) {
    const kernel = kernels[change.kernel];
    if (change.line === undefined) next.line = kernel.line;
    if (kernel.graph >= 0) next.graph = kernel.graph;
    if (change.node === undefined) next.node = -1;
  }
  const words = new URLSearchParams();
  for (const key of Object.keys(start)) if (next[key] !== start[key]) words.set(key, next[key]);
  const hash = "#" + words;
  const moved = next.view !== current.view || next.kernel !== current.kernel;
  current = next;
  if (hash !== location.hash) history[moved ? "pushState" : "replaceState"](null, "", hash);
  listeners.forEach((tell) => tell(current));
}

window.addEventListener("hashchange", () => { current = read(); listeners.forEach((tell) => tell(current)); });
window.addEventListener("popstate", () => { current = read(); listeners.forEach((tell) => tell(current)); });

export const selected = () => current;

// For what is no button: a click, or Enter while it has the focus.
export const pressed = (act) => ({ tabindex: 0, onClick: act, onKeyDown: (e) => { if (e.key === "Enter" && e.target === e.currentTarget) act(e); } });

export function useSelected() {
  const [state, set] = useState(current);
  useEffect(() => { listeners.add(set); return () => listeners.delete(set); }, []);
  return state;
}
