// The schedule: kernels as groups over the graph, in the order they run; what each fuses, and why its result is stored.
import { h, Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { LINE, OP, SRC, data, kernelEdges, kernelTime, kernels, layerName, lineName, percent, plural, time } from "./model.js";
import { GraphPicker, kindOf, nodeLines } from "./graph.jsx";
import { matches } from "./overview.jsx";
import { Bar, Empty, KernelCard } from "./parts.jsx";
import { pressed, select, useSelected } from "./state.js";
import { SvgGraph } from "./svggraph.jsx";

const MOST = 90;         // kernels that are drawn at once; of more, those near the selected one

export function Schedule({ query }) {
  const { graph, kernel, line } = useSelected();
  if (graph < 0) return <Empty>No schedule was made while this was recorded.</Empty>;
  const order = data.graphs[graph].kernels;
  const most = Math.max(1, ...order.map((k) => kernels[k].ns));
  const mine = order.includes(kernel) ? kernel : order[0];
  const list = useRef(null);
  useEffect(() => list.current?.querySelector("li.selected")?.scrollIntoView({ block: "nearest" }), [mine]);
  const ofLine = (k) => line < 0 || kernels[k].line === line || kernels[k].lines.some(([l]) => l === line);
  return <div class="view schedule-view">
    <div class="toolbar"><GraphPicker graph={graph} />
      <span class="dim">{plural(order.length, "kernel")} in the order they run. Click a box to see the nodes in it</span></div>
    <div class="columns">
      <ol class="kernel-list" ref={list} aria-label="kernels in order">{order.map((k, i) => {
        const it = kernels[k];
        const off = !ofLine(k) || !matches(it, query);
        return <li key={k} class={(k === mine ? "selected" : "") + (off ? " faded" : "")}
          {...pressed(() => select({ kernel: k }))}>
          <span class="num">{i}</span>
          <div><div class="row"><b class="mono">{it.name || "kernel"}</b>{it.backward ? <span class="dim">∂</span> : null}
            <span class="dim layer">{layerName(it.call)}</span><span class="t">{it.ns ? time(it.ns / Math.max(1, it.runs)) : ""}</span></div>
            <Bar part={it.ns / most} />
            <div class="reason">{plural(it.nodes.length, "operation")} fused; stored because: {[...new Set(it.reasons)].join("; ")}</div>
          </div>
        </li>;
      })}</ol>
      <div class="right">
        <Dag graph={graph} order={order} mine={mine} ofLine={ofLine} />
        {mine !== undefined ? <KernelCard kernel={kernels[mine]} /> : null}
      </div>
    </div>
  </div>;
}

// Without edges from a to c where there is a way from a by b to c: what is left shows the order, and can be followed.
function withoutShortcuts(order, edges) {
  if (order.length > 600) return edges;
  const at = new Map(order.map((k, i) => [k, i])), direct = order.map(() => new Set());
  for (const [a, b] of edges) if (a !== b && at.get(a) < at.get(b)) direct[at.get(b)].add(at.get(a));
  const before = [];               // of each kernel, all that it depends on
  const kept = [];
  direct.forEach((sources, i) => {
    const all = new Set();
    for (const s of [...sources].sort((x, y) => y - x)) {
      if (!all.has(s)) kept.push([order[s], order[i]]);
      all.add(s);
      for (const t of before[s]) all.add(t);
    }
    before.push(all);
  });
  return kept;
}

function Dag({ graph, order, mine, ofLine }) {
  const edges = useMemo(() => withoutShortcuts(order, kernelEdges(graph)), [graph]);
  const shown = useMemo(() => {
    if (order.length <= MOST) return new Set(order);
    const near = new Set([mine]);
    let ring = [mine];
    while (near.size < MOST && ring.length) {
      const next = [];
      for (const [a, b] of edges)
        for (const [x, y] of [[a, b], [b, a]])
          if (ring.includes(x) && !near.has(y) && near.size < MOST) { near.add(y); next.push(y); }
      ring = next;
    }
    return near;
  }, [graph, order, order.length > MOST ? mine : 0]);
  const most = Math.max(1, ...order.map((k) => kernels[k].ns));
  const [opened, setOpened] = useState(() => new Set());
  const rows = data.graphs[graph].nodes;
  const { plain, clusters, drawn } = useMemo(() => {
    const list = order.filter((k) => shown.has(k)), open = (k) => opened.has(k) && kernels[k].nodes.length > 0;
    const name = (k) => `${order.indexOf(k)} ${layerName(kernels[k].call).split(" / ").pop() || kernels[k].name}`;
    const inside = new Map(list.map((k) => [k, new Set(kernels[k].nodes.filter((n) => rows[n][OP] !== "CONST"))]));
    const plain = list.flatMap((k) => !open(k) ? [{ id: `k${k}`, kernel: k,
      lines: [name(k), `${kernels[k].shape.join("×") || "1"}  ${kernels[k].ns ? percent(kernels[k].ns / kernelTime, 1) : ""}`] }]
      : [...inside.get(k)].map((n) => ({ id: `k${k}n${n}`, kernel: k, node: n, parent: `k${k}`, lines: nodeLines(rows, n) })));
    const clusters = list.filter(open).map((k) => ({ id: `k${k}`, kernel: k, label: name(k) }));
    const drawn = edges.filter(([a, b]) => a !== b && shown.has(a) && shown.has(b) && !open(a) && !open(b)).map(([a, b]) => [`k${a}`, `k${b}`]);
    const writer = new Map(list.flatMap((k) => kernels[k].roots.map((n) => [n, k])));
    for (const k of clusters.length ? list : [])          // around and in what is open: from node to node
      for (const n of inside.get(k))
        for (const s of rows[n][SRC]) {
          const from = inside.get(k).has(s) ? k : writer.get(s);
          if (from !== undefined && (open(k) || open(from)) && (open(k) || from !== k))
            drawn.push([open(from) ? `k${from}n${s}` : `k${from}`, open(k) ? `k${k}n${n}` : `k${k}`]);
        }
    return { plain, clusters, drawn };
  }, [shown, edges, opened]);
  const toggle = (k) => setOpened((before) => { const next = new Set(before); if (!next.delete(k)) next.add(k); return next; });
  const boxes = plain.map((b) => b.node !== undefined ? { ...b, class: `k-${kindOf(rows[b.node])}`, title: "show it in the graph" }
    : { ...b, heat: kernels[b.kernel].ns / most, title: `${kernels[b.kernel].name}\n${lineName(kernels[b.kernel].line)}`,
      class: `k-${kernels[b.kernel].backward ? "backward" : "call"} group` + (b.kernel === mine ? " selected" : "") + (ofLine(b.kernel) ? "" : " faded") });
  const focus = clusters.some((c) => c.kernel === mine) ? `k${mine}n${kernels[mine].roots[0]}` : `k${mine}`;
  return <SvgGraph boxes={boxes} structure={plain} clusters={clusters} edges={drawn} label="kernels" fitKey={graph} focus={focus}
    onCluster={(c) => toggle(c.kernel)}
    onBox={(b) => { if (b.node === undefined) { select({ kernel: b.kernel }); toggle(b.kernel); } else select({ view: "graph", node: b.node, line: rows[b.node][LINE] }); }} />;
}
