// A layered drawing that can be moved and zoomed: boxes, clusters around them, edges. Layout by dagre.
import { h, Fragment } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Graph, layout } from "@dagrejs/dagre";
import { pressed } from "./state.js";

const LEAST_SCALE = 0.66;         // smaller text cannot be read: a part is shown instead
const LETTER = 6.6, ROW = 15;
export const boxSize = (lines) =>
  ({ width: Math.max(...lines.map((l, i) => l.length * (i ? LETTER - 0.6 : LETTER + 0.3))) + 24, height: lines.length * ROW + 12 });

const LONGEST_ROUTED = 4;         // ranks; dagre makes a node of its own for each rank that an edge passes, and takes seconds for many

// Edges that dagre routes, and long ones that are drawn straight over the others. Ranks are counted from the sinks, as dagre's
// "longest-path" does; the edge to a node's nearest reader passes one rank, so without the long ones ranks stay the same.
// The first edge from one cluster to another always stays: it keeps them in order.
export function splitEdges(boxes, edges) {
  const readers = new Map(boxes.map((b) => [b.id, []])), parent = new Map(boxes.map((b) => [b.id, b.parent]));
  for (const [from, to] of edges) readers.get(from)?.push(to);
  const rank = new Map(), begun = new Set();         // boxes of several nodes can read each other: a circle ends where it began
  const visit = (first) => {          // a stack of its own: graphs can be deeper than the engine's
    const stack = [first];
    while (stack.length) {
      const id = stack.at(-1);
      begun.add(id);
      const waiting = readers.get(id).find((r) => !begun.has(r) && readers.has(r));
      if (waiting !== undefined) stack.push(waiting);
      else { rank.set(id, 1 + Math.max(-1, ...readers.get(id).map((r) => rank.get(r) ?? -1))); stack.pop(); }
    }
  };
  for (const b of boxes) if (!begun.has(b.id)) visit(b.id);
  const joined = new Set(), routed = [], long = [];
  for (const edge of edges) {
    const [from, to] = edge, pair = `${parent.get(from)} ${parent.get(to)}`;
    const first = parent.get(from) !== parent.get(to) && !joined.has(pair);
    joined.add(pair);
    (first || rank.get(from) - rank.get(to) <= LONGEST_ROUTED ? routed : long).push(edge);
  }
  return [routed, long];
}

export function place(boxes, clusters, edges) {
  const g = new Graph({ compound: clusters.length > 0, multigraph: false });
  g.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, marginx: 12, marginy: 12, ranker: "longest-path" });
  g.setDefaultEdgeLabel(() => ({}));
  for (const c of clusters) g.setNode(c.id, { label: c.label });
  for (const b of boxes) g.setNode(b.id, boxSize(b.lines));
  for (const one of [...clusters, ...boxes]) if (one.parent) g.setParent(one.id, one.parent);
  const [routed, long] = splitEdges(boxes, edges);
  for (const [from, to] of routed) g.setEdge(from, to);
  layout(g);
  for (const [from, to] of long) {
    const a = g.node(from), b = g.node(to), side = (a.x <= b.x ? -1 : 1) * 30;
    g.setEdge(from, to, { points: [{ x: a.x, y: a.y + a.height / 2 }, { x: (a.x + b.x) / 2 + side, y: (a.y + b.y) / 2 },
      { x: b.x, y: b.y - b.height / 2 }] });
  }
  return g;
}

const NONE = [];

// `structure` holds the boxes to lay out, and stays the same object while only their colours change.
export function SvgGraph({ boxes, structure = boxes, clusters = NONE, edges, onBox, onCluster, label, fitKey, focus }) {
  const drawn = useMemo(() => {
    try { return place(structure, clusters, edges); } catch (wrong) {
      console.warn("layout without clusters:", wrong);        // dagre refuses some nestings
      return place(structure.map((b) => ({ ...b, parent: undefined })), [], edges);
    }
  }, [structure, clusters, edges]);
  const svg = useRef(null), content = useRef(null), view = useRef({ x: 0, y: 0, k: 1 });
  const size = drawn.graph();
  const apply = () => content.current?.setAttribute("transform",
    `translate(${view.current.x} ${view.current.y}) scale(${view.current.k})`);
  const fit = () => {
    const box = svg.current?.getBoundingClientRect();
    if (!box || !box.width) return;
    const k = Math.min(1.25, (box.width - 24) / Math.max(1, size.width), (box.height - 24) / Math.max(1, size.height));
    const scale = Math.max(k, LEAST_SCALE);
    const at = focus && drawn.hasNode(focus) ? drawn.node(focus) : null;
    const along = (whole, room, centre) => whole * scale <= room ? (room - whole * scale) / 2      // all of it, in the middle,
      : Math.min(12, Math.max(room - whole * scale - 12, room / 2 - centre * scale));             // or what is in focus
    view.current = { k: scale, x: along(size.width, box.width, at ? at.x : size.width / 2), y: along(size.height, box.height, at ? at.y : 0) };
    apply();
  };
  useEffect(fit, [fitKey, size.width, size.height]);
  const focused = useRef(focus);
  useEffect(() => {         // a box that was chosen elsewhere is brought into sight
    if (focused.current === focus) return;
    focused.current = focus;
    const n = focus && drawn.hasNode(focus) ? drawn.node(focus) : null, box = svg.current?.getBoundingClientRect();
    if (!n || !box) return;
    const v = view.current, [x, y] = [n.x * v.k + v.x, n.y * v.k + v.y];
    if (x < 40 || y < 20 || x > box.width - 40 || y > box.height - 20) {
      view.current = { ...v, x: box.width / 2 - n.x * v.k, y: box.height / 2 - n.y * v.k };
      apply();
    }
  }, [focus]);
  useEffect(() => {
    const el = svg.current;
    const wheel = (e) => {
      e.preventDefault();
      const box = el.getBoundingClientRect(), v = view.current;
      if (!e.ctrlKey && !e.metaKey && e.shiftKey) { v.x -= e.deltaY; apply(); return; }
      const k = Math.min(4, Math.max(0.05, v.k * Math.exp(-e.deltaY * 0.0015)));
      const [mx, my] = [e.clientX - box.left, e.clientY - box.top];
      view.current = { k, x: mx - (mx - v.x) * k / v.k, y: my - (my - v.y) * k / v.k };
      apply();
    };
    let from = null;
    const down = (e) => { from = { x: e.clientX - view.current.x, y: e.clientY - view.current.y, moved: false }; };
    const move = (e) => {
      if (!from || !(e.buttons & 1)) return;
      const [x, y] = [e.clientX - from.x, e.clientY - from.y];
      if (Math.abs(x - view.current.x) + Math.abs(y - view.current.y) > 3) from.moved = true;
      view.current = { ...view.current, x, y };
      if (from.moved) el.classList.add("moving");
      apply();
    };
    const up = () => { setTimeout(() => el.classList.remove("moving")); from = null; };
    const keys = (e) => {
      if (e.target.matches("input, select, textarea")) return;
      const v = view.current, box = el.getBoundingClientRect();
      const zoom = (f) => { view.current = { k: v.k * f, x: box.width / 2 - (box.width / 2 - v.x) * f,
        y: box.height / 2 - (box.height / 2 - v.y) * f }; apply(); };
      if (e.key === "f") fit(); else if (e.key === "+" || e.key === "=") zoom(1.25); else if (e.key === "-") zoom(0.8);
    };
    el.addEventListener("wheel", wheel, { passive: false });
    el.addEventListener("pointerdown", down);
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
    window.addEventListener("keydown", keys);
    return () => {
      el.removeEventListener("wheel", wheel); el.removeEventListener("pointerdown", down);
      window.removeEventListener("pointermove", move); window.removeEventListener("pointerup", up);
      window.removeEventListener("keydown", keys);
    };
  });
  const still = (act) => (e) => { if (!svg.current.classList.contains("moving")) { e.stopPropagation(); act(e); } };
  return <div class="graph-frame">
    <svg ref={svg} class="graph" role="group" aria-label={label}>
      <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
        <path d="M0 0 L8 4 L0 8 z" /></marker></defs>
      <g ref={content}>
        {clusters.map((c) => {
          const n = drawn.node(c.id);
          if (!n || !n.width) return null;
          return <g class={"cluster " + (c.class || "")} role="button" aria-label={"close " + c.label} {...pressed(still(() => onCluster?.(c)))}>
            <rect x={n.x - n.width / 2} y={n.y - n.height / 2 - 12} width={n.width} height={n.height + 12} rx="8" />
            <text x={n.x - n.width / 2 + 10} y={n.y - n.height / 2 + 3}>▾ {c.label}</text><title>click to collapse</title>
          </g>;
        })}
        {drawn.edges().map((e) => <path class="edge" d={curve(drawn.edge(e).points)} marker-end="url(#tip)" />)}
        {boxes.map((b) => {
          const n = drawn.node(b.id);
          return <g class={"box " + b.class} transform={`translate(${n.x - n.width / 2} ${n.y - n.height / 2})`}
            data-id={b.id} role="button" aria-label={b.lines.join(" ")} {...pressed(still((e) => onBox?.(b, e)))}>
            <rect width={n.width} height={n.height} rx={b.group ? 8 : 5}
              style={b.hue === undefined ? undefined : { fill: `hsl(${b.hue} 60% 60% / 38%)`, stroke: `hsl(${b.hue} 55% 50%)` }} />
            {b.heat ? <rect class="heatbar" x="1" y={n.height - 4} width={Math.max(2, (n.width - 2) * b.heat)} height="3" rx="1.5" /> : null}
            {b.lines.map((text, i) => <text class={i ? "second" : "first"} x={n.width / 2} y={ROW * i + 17} text-anchor="middle">{text}</text>)}
            {b.title ? <title>{b.title}</title> : null}
          </g>;
        })}
      </g>
    </svg>
    <div class="zoom"><button title="fit (f)" onClick={fit}>fit</button></div>
  </div>;
}

function curve(points) {
  if (points.length < 3) return "M" + points.map((p) => `${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join(" L");
  let d = `M${points[0].x.toFixed(1)} ${points[0].y.toFixed(1)}`;
  for (let i = 1; i < points.length - 1; i++) {
    const p = points[i], q = points[i + 1];
    const end = i === points.length - 2 ? q : { x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 };
    d += ` Q${p.x.toFixed(1)} ${p.y.toFixed(1)} ${end.x.toFixed(1)} ${end.y.toFixed(1)}`;
  }
  return d;
}
