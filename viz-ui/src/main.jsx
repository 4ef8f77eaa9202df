// The page: navigation, search, keys, and the view that is chosen, beside the user's program.
import { h, render } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { bySlowest, data } from "./model.js";
import { GraphView } from "./graph.jsx";
import { Gradient } from "./gradient.jsx";
import { KernelView } from "./kernel.jsx";
import { Memory } from "./memory.jsx";
import { Overview } from "./overview.jsx";
import { Schedule } from "./schedule.jsx";
import { SourcePane } from "./source.jsx";
import { VIEWS, select, selected, useSelected } from "./state.js";
import { Timeline } from "./timeline.jsx";
import "./style.css";

const NAMES = { overview: "Overview", graph: "Graph", schedule: "Schedule", kernel: "Kernel", timeline: "Timeline",
  memory: "Memory", gradient: "Gradient" };
const SHOWN = { overview: Overview, graph: GraphView, schedule: Schedule, kernel: KernelView, timeline: Timeline, memory: Memory,
  gradient: Gradient };

function remembered(name) { try { return localStorage.getItem(name); } catch { return null; } }
function remember(name, value) { try { localStorage.setItem(name, value); } catch { /* a page from a file may not */ } }

function App() {
  const state = useSelected();
  const [query, setQuery] = useState("");
  const [help, setHelp] = useState(false);
  const [theme, setTheme] = useState(() => remembered("glassgrad-theme")
    || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  const search = useRef(null);
  document.documentElement.dataset.theme = theme;
  const turn = () => { const next = theme === "dark" ? "light" : "dark"; remember("glassgrad-theme", next); setTheme(next); };
  useLayoutEffect(() => {
    const keys = (e) => {
      if (e.key === "Escape") {
        if (help) setHelp(false); else if (document.activeElement === search.current) { setQuery(""); search.current.blur(); }
        else if (selected().node >= 0) select({ node: -1 }); else select({ line: -1 });
        return;
      }
      if (e.target.matches("input, select, textarea") || e.ctrlKey || e.metaKey || e.altKey) return;
      const number = "1234567".indexOf(e.key);
      if (number >= 0) select({ view: VIEWS[number] });
      else if (e.key === "/") { e.preventDefault(); search.current.focus(); search.current.select(); }
      else if (e.key === "t") turn();
      else if (e.key === "?") setHelp(!help);
      else if ("[]jk".includes(e.key)) {
        const at = bySlowest.findIndex((k) => k.id === selected().kernel);
        const next = bySlowest[at + (e.key === "]" || e.key === "j" ? 1 : -1)];
        if (next) select({ kernel: next.id });
      }
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  const View = SHOWN[state.view];
  return <div class="app">
    <header class="top">
      <span class="brand">glassgrad <b>viz</b></span>
      <nav aria-label="views">{VIEWS.map((v, i) => <button class={v === state.view ? "on" : ""} aria-current={v === state.view ? "page" : undefined}
        onClick={() => select({ view: v })}>{NAMES[v]}<kbd>{i + 1}</kbd></button>)}</nav>
      <input ref={search} type="search" aria-label="search" placeholder="search ( / )" value={query} onInput={(e) => setQuery(e.target.value)} />
      <span class="program mono" title={data.program}>{data.program}</span>
      <button class="icon" title="dark or light (t)" aria-label="dark or light" onClick={turn}>{theme === "dark" ? "☀" : "☾"}</button>
      <button class="icon" title="keys (?)" aria-label="keys" onClick={() => setHelp(!help)}>?</button>
    </header>
    <div class="body">
      <SourcePane />
      <main tabIndex={-1}><View query={query} theme={theme} /></main>
    </div>
    {help ? <Help close={() => setHelp(false)} /> : null}
  </div>;
}

const KEYS = [["1 – 7", "views"], ["/", "search in this view"], ["[ ]  or  k j", "faster or slower kernel"], ["n p  or  → ←", "next or previous pass"],
  ["f + −", "fit and zoom a drawing"], ["e c", "open what is lit, close all"], ["w s a d", "zoom and move the timeline"],
  ["t", "dark or light"], ["Esc", "select nothing"], ["?", "this list"]];

function Help({ close }) {
  return <div class="help" role="dialog" aria-label="keys" onClick={close}><div class="card" onClick={(e) => e.stopPropagation()}>
    <h2>Keys</h2><dl>{KEYS.map(([key, says]) => <div><dt><kbd>{key}</kbd></dt><dd>{says}</dd></div>)}</dl>
    <p class="dim">Click a line of your program: its nodes, kernels and time light up in every view, and back.</p></div></div>;
}

render(<App />, document.getElementById("app"));
