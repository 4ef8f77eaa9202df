// The tensor graph beside the program: calls and layers as boxes that open, nodes of the selected line lit.
import { h, Fragment } from "preact";
import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { ARG, BACKWARD, CALL, DTYPE, KIND, LINE, OP, SHAPE, SRC, callName, callPath, data, graphName, graphsBySlowest, kernelTime,
  kernels, percent, plural, shapeText, time } from "./model.js";
import { groupTree, openAtFirst, visible } from "./grouping.js";
import { Empty, KernelLink, LineLink } from "./parts.jsx";
import { select, useSelected } from "./state.js";
import { SvgGraph } from "./svggraph.jsx";

export function GraphPicker({ graph }) {
  return <select aria-label="graph" value={graph} onChange={(e) => select({ graph: +e.target.value, node: -1 })}>
    {graphsBySlowest.map((g) => <option value={g}>{graphName(g)}</option>)}
  </select>;
}

export function GraphView({ query }) {
  const { graph, line, node, kernel } = useSelected();
  const [written, setWritten] = useState(false);
  const [byKernel, setByKernel] = useState(false);
  if (graph < 0) return <Empty>No graph was scheduled while this was recorded.</Empty>;
  const rows = written ? data.graphs[graph].written : data.graphs[graph].nodes;
  return <div class="view graph-view">
    <div class="toolbar">
      <GraphPicker graph={graph} />
      <span class="switch" role="group" aria-label="stage">
        <button class={written ? "" : "on"} onClick={() => { setWritten(false); select({ node: -1 }); }}>as compiled</button>
        <button class={written ? "on" : ""} onClick={() => { setWritten(true); select({ node: -1 }); }}>as written</button>
      </span>
      <span class="switch" role="group" aria-label="colours">
        <button class={byKernel ? "" : "on"} onClick={() => setByKernel(false)}>by kind</button>
        <button class={byKernel ? "on" : ""} disabled={written} title="nodes of one kernel have one colour" onClick={() => setByKernel(true)}>by kernel</button>
      </span>
      {byKernel && !written ? <span class="dim">one colour per kernel; what several compute has none</span> : <Legend />}
    </div>
    <Drawing key={`${graph}${written}`} graph={graph} rows={rows} written={written} line={line} node={node} kernel={kernel}
      query={query} byKernel={byKernel && !written} />
  </div>;
}

const Legend = () => <span class="legend">{["elementwise", "reduce", "movement", "memory", "call"].map((k) =>
  <span><i class={"k-" + k} />{k}</span>)}</span>;

const MOST_BOXES = 150;         // what the key e opens at most; a click opens any call

const KINDS = { unary: "elementwise", binary: "elementwise", ternary: "elementwise", reduce: "reduce", movement: "movement" };
export const kindOf = (row) => KINDS[row[KIND]] || "memory";

export function nodeLines(rows, i) {
  const row = rows[i];
  const constants = row[SRC].filter((s) => rows[s][OP] === "CONST").map((s) => rows[s][ARG]);
  return [row[OP] + (constants.length ? " " + constants.join(", ") : ""), shapeText(row[SHAPE])];
}

function Drawing({ graph, rows, written, line, node, kernel, query, byKernel }) {
  const tree = useMemo(() => groupTree(rows), [rows]);
  const [open, setOpen] = useState(() => openAtFirst(tree));
  const shown = useMemo(() => visible(tree, rows, open), [tree, open]);
  const heat = useMemo(() => {          // time of the kernels whose result is inside a group
    const found = new Map();
    if (written) return found;
    for (const k of data.graphs[graph].kernels) {
      const root = kernels[k].roots[0];
      if (root === undefined) continue;
      found.set(`n${root}`, (found.get(`n${root}`) || 0) + kernels[k].ns);
      for (let g = tree.parents[root]; g; g = g.parent) found.set(g.id, (found.get(g.id) || 0) + kernels[k].ns);
    }
    return found;
  }, [tree]);
  const lit = useMemo(() => {
    const found = new Map();
    const words = query.toLowerCase();
    rows.forEach((r, i) => {
      const hit = (line >= 0 && r[LINE] === line) || (words && `${r[OP]} ${r[ARG]} ${r[DTYPE]}${shapeText(r[SHAPE])} ${callName(r[CALL])}`.toLowerCase().includes(words));
      if (hit && shown.stands[i]) found.set(shown.stands[i], (found.get(shown.stands[i]) || 0) + 1);
    });
    return found;
  }, [rows, shown, line, query]);
  const inKernel = useMemo(() => new Set(!written && kernel >= 0 && kernels[kernel].graph === graph
    ? kernels[kernel].nodes.map((n) => shown.stands[n]) : []), [shown, kernel, graph]);
  const ofKernel = useMemo(() => {          // the only kernel of each box; -1 where there are several
    const found = new Map();
    if (!written)
      for (const k of data.graphs[graph].kernels)
        for (const n of kernels[k].nodes) {
          const box = shown.stands[n];
          found.set(box, found.has(box) && found.get(box) !== k ? -1 : k);
        }
    return found;
  }, [shown, graph, written]);
  const [boxes, clusters] = useMemo(() => {
    const boxes = [], clusters = [];
    const visit = (group, parent) => {
      for (const c of group.children) {
        if (!c.children) {
          const row = rows[c.node];
          boxes.push({ id: `n${c.node}`, node: c.node, lines: nodeLines(rows, c.node), parent, kind: kindOf(row) });
        } else if (open.has(c.id)) {
          clusters.push({ id: c.id, label: c.name, parent });
          visit(c, c.id);
        } else {
          const ns = heat.get(c.id) || 0;
          boxes.push({ id: c.id, group: c, parent, kind: "call",
            lines: [c.name, plural(c.count, "node") + (ns ? `, ${percent(ns / kernelTime, 1)}` : "")] });
        }
      }
    };
    visit(tree.root, undefined);
    return [boxes, clusters];
  }, [tree, open]);
  const marked = boxes.map((b) => {
    const ns = heat.get(b.id) || 0;
    const own = ofKernel.get(b.id);
    return { ...b, heat: ns / kernelTime, hue: byKernel && own !== undefined && own >= 0 ? data.graphs[graph].kernels.indexOf(own) * 137.5 % 360 : undefined, class: `k-${b.kind}` + (b.group ? " group" : "") + (lit.has(b.id) ? " lit" : "")
      + (inKernel.has(b.id) ? " in-kernel" : "") + (b.node === node && node >= 0 ? " selected" : "")
      + (line >= 0 || query ? (lit.has(b.id) ? "" : " faded") : ""),
      title: b.group ? `${b.group.name}: click to open${ns ? `\n${time(ns)}` : ""}` : "" };
  });
  const toggle = (id) => setOpen((before) => {
    const next = new Set(before);
    if (next.has(id)) next.delete(id); else next.add(id);
    return next;
  });
  useLayoutEffect(() => {
    const keys = (e) => {
      if (e.target.matches("input, select, textarea")) return;
      if (e.key === "e") {          // open what is lit, one level
        let left = MOST_BOXES - boxes.length;
        const groups = boxes.filter((b) => b.group && (lit.size ? lit.has(b.id) : true)).filter((b, i) => {
          left -= b.group.children.length;
          return i === 0 || left >= 0;
        });
        setOpen((before) => new Set([...before, ...groups.map((b) => b.id)]));
      } else if (e.key === "c") setOpen(openAtFirst(tree));
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  return <div class="graph-body">
    <SvgGraph boxes={marked} structure={boxes} clusters={clusters} edges={shown.edges} label="tensor graph" fitKey={clusters.length === 0}
      focus={node >= 0 ? shown.stands[node] : boxes.find((b) => b.group && lit.has(b.id))?.id}
      onCluster={(c) => toggle(c.id)}
      onBox={(b) => b.group ? toggle(b.id)
        : select({ node: b.node, line: rows[b.node][LINE] >= 0 ? rows[b.node][LINE] : line })} />
    <footer class="status">
      {plural(rows.length, "node")}, {boxes.length} {boxes.length === 1 ? "box" : "boxes"} shown
      {lit.size ? <b> · {plural([...lit.values()].reduce((a, b) => a + b, 0), "node")} lit</b> : null}
      <span class="dim"> · click a call to open it, <kbd>e</kbd> opens what is lit, <kbd>c</kbd> closes, <kbd>f</kbd> fits</span>
    </footer>
    {node >= 0 && rows[node] ? <NodeCard graph={graph} rows={rows} node={node} written={written} /> : null}
  </div>;
}

function NodeCard({ graph, rows, node, written }) {
  const row = rows[node];
  const readers = [];
  for (let i = node + 1; i < rows.length && readers.length < 12; i++) if (rows[i][SRC].includes(node)) readers.push(i);
  const mine = written ? [] : data.graphs[graph].kernels.filter((k) => kernels[k].nodes.includes(node));
  const stored = mine.filter((k) => kernels[k].roots.includes(node));
  const link = (i) => <button class="chip mono" onClick={() => select({ node: i, line: rows[i][LINE] })}>
    {rows[i][OP]} {shapeText(rows[i][SHAPE])}</button>;
  return <section class="card node-card">
    <button class="close" title="close (Esc)" onClick={() => select({ node: -1 })}>×</button>
    <h3 class="mono">{row[OP]} <span class="dim">{row[DTYPE]}{shapeText(row[SHAPE])}</span></h3>
    {row[ARG] ? <p class="mono dim">{row[ARG]}</p> : null}
    <p class="where"><span class="label">line</span> <LineLink line={row[LINE]} /></p>
    {row[CALL] >= 0 ? <p class="where"><span class="label">call</span> {callPath(row[CALL]).map(callName).join(" › ")}
      {row[BACKWARD] ? " (its gradient)" : ""}</p> : null}
    {mine.length ? <p><span class="label">kernel</span> {mine.slice(0, 6).map((k) => <KernelLink kernel={kernels[k]} node={node} line={row[LINE]} />)}
      {mine.length > 1 ? <span class="dim"> computed in each of {mine.length}: cheaper than to store it</span> : null}</p> : null}
    {stored.length ? <p><span class="label">stored</span> {kernels[stored[0]].reasons[kernels[stored[0]].roots.indexOf(node)] || kernels[stored[0]].reasons[0]}</p>
      : mine.length ? <p><span class="label">fused</span> never in memory: computed where it is used</p> : null}
    {row[SRC].length ? <p><span class="label">reads</span> {row[SRC].map(link)}</p> : null}
    {readers.length ? <p><span class="label">read by</span> {readers.map(link)}</p> : null}
  </section>;
}
