// When what ran: Python, the engine's own work, launches and kernels. Drawn on a canvas: there may be many thousands.
import { h } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { data, gflops, gigabytes, kernelTime, kernels, lineName, percent, plural, time } from "./model.js";
import { Empty, KernelCard } from "./parts.jsx";
import { select, useSelected } from "./state.js";

const ROWS = [["python", -1], ["schedule", 0], ["compile", 1], ["run", 2], ["kernel", 3]];
const ROW = 34, LEFT = 84, TOP = 26;

export function Timeline({ theme }) {
  const { kernel, line } = useSelected();
  const canvas = useRef(null), view = useRef(null);
  const [tip, setTip] = useState(null);
  const spans = data.timeline;
  const end = Math.max(1, data.totals.wall / 1e3);
  if (!spans.length) return <Empty>Nothing ran while this was recorded.</Empty>;
  view.current = view.current || [0, end];

  const draw = () => {
    const el = canvas.current;
    if (!el) return;
    const width = el.clientWidth, height = TOP + ROW * ROWS.length + 6, ratio = window.devicePixelRatio || 1;
    el.width = width * ratio; el.height = height * ratio; el.style.height = height + "px";
    const c = el.getContext("2d"), style = getComputedStyle(document.body);
    const color = (name) => style.getPropertyValue(name).trim();
    c.scale(ratio, ratio);
    c.font = "11px " + color("--sans");
    const [a, b] = view.current, x = (t) => LEFT + (t - a) / (b - a) * (width - LEFT - 8);
    const step = nice((b - a) / 8);
    c.fillStyle = color("--dim"); c.strokeStyle = color("--rule");
    for (let t = Math.ceil(a / step) * step; t <= b; t += step) {
      c.beginPath(); c.moveTo(x(t), TOP - 6); c.lineTo(x(t), height); c.stroke();
      c.fillText(time(t * 1e3), x(t) + 3, TOP - 10);
    }
    ROWS.forEach(([name], i) => { c.fillStyle = color("--dim"); c.fillText(name, 8, TOP + ROW * i + 20); });
    c.save();
    c.beginPath(); c.rect(LEFT, 0, width - LEFT - 8, height); c.clip();
    c.fillStyle = color("--part-python"); c.globalAlpha = 0.55;
    c.fillRect(x(0), TOP + 5, x(end) - x(0), ROW - 12);
    c.globalAlpha = 1;
    for (const [kind, start, duration, id] of spans) {
      if (start > b || start + duration < a) continue;
      const left = x(start), w = Math.max(1, x(start + duration) - left);
      const k = id >= 0 ? kernels[id] : null, top = TOP + ROW * (kind + 1) + 4;
      if (kind < 3) { c.fillStyle = color("--back"); c.fillRect(left, TOP + 5, w, ROW - 12); }       // Python waited
      c.fillStyle = kind === 3 ? color(k ? `--bound-${k.bound}` : "--accent") : color(`--part-${["schedule", "compile", "launch"][kind]}`);
      c.globalAlpha = kind === 3 && line >= 0 && k && k.line !== line && !k.lines.some(([l]) => l === line) ? 0.2 : 1;
      c.fillRect(left, top, w, ROW - 10);
      if (id === kernel && kind === 3) { c.strokeStyle = color("--ink"); c.lineWidth = 1.5; c.strokeRect(left, top, w, ROW - 10); c.lineWidth = 1; }
      if (w > 46) {
        c.fillStyle = "#fff"; c.save(); c.beginPath(); c.rect(left + 3, top, w - 6, ROW); c.clip();
        c.fillText(kind === 3 ? k?.name || "" : data.kinds[kind], left + 5, top + 16); c.restore();
      }
      c.globalAlpha = 1;
    }
    c.restore();
  };
  useEffect(draw, [kernel, line, theme, tip === null]);
  const at = (e) => {
    const el = canvas.current, box = el.getBoundingClientRect(), [a, b] = view.current;
    const t = a + (e.clientX - box.left - LEFT) / (box.width - LEFT - 8) * (b - a);
    const kind = Math.floor((e.clientY - box.top - TOP) / ROW) - 1, slack = 2 * (b - a) / box.width;
    let best = null;
    for (const s of spans) if (s[0] === kind && t >= s[1] - slack && t <= s[1] + s[2] + slack) best = s;
    return [best, t];
  };
  useEffect(() => {
    const el = canvas.current;
    const wheel = (e) => {
      e.preventDefault();
      const [, t] = at(e), [a, b] = view.current, f = Math.exp(e.deltaY * 0.0015);
      zoomTo(t - (t - a) * f, t + (b - t) * f);
    };
    let from = null;
    const down = (e) => { from = [e.clientX, ...view.current]; };
    const move = (e) => {
      if (!from || !(e.buttons & 1)) { from = null; return; }
      const by = (from[0] - e.clientX) / (el.clientWidth - LEFT) * (from[2] - from[1]);
      zoomTo(from[1] + by, from[2] + by);
    };
    const keys = (e) => {
      if (e.target.matches("input, select, textarea")) return;
      const [a, b] = view.current, w = b - a, m = (a + b) / 2;
      const to = { w: [m - w / 3, m + w / 3], s: [m - w * 0.75, m + w * 0.75], a: [a - w / 4, b - w / 4], d: [a + w / 4, b + w / 4],
        f: [0, end], "+": [m - w / 3, m + w / 3], "-": [m - w * 0.75, m + w * 0.75] }[e.key];
      if (to) zoomTo(...to);
    };
    el.addEventListener("wheel", wheel, { passive: false });
    el.addEventListener("pointerdown", down); window.addEventListener("pointermove", move);
    window.addEventListener("keydown", keys); window.addEventListener("resize", draw);
    return () => { el.removeEventListener("wheel", wheel); el.removeEventListener("pointerdown", down);
      window.removeEventListener("pointermove", move); window.removeEventListener("keydown", keys); window.removeEventListener("resize", draw); };
  });
  const zoomTo = (a, b) => {
    const w = Math.min(Math.max(b - a, 2), end * 1.1);
    a = Math.min(Math.max(a, -end * 0.05), end * 1.05 - w);
    view.current = [a, a + w];
    draw();
  };
  const step = data.groups.filter((g) => g.replay).sort((p, q) => q.ns - p.ns)[0];
  const detailed = new Set(spans.filter((s) => s[0] === 3).map((s) => s[1]));       // runs that are kept kernel by kernel
  const last = step && [...spans].reverse().find((s) => s[0] === 2 && s[3] === step.kernels[0] && detailed.has(s[1]));
  return <div class="view timeline-view">
    <div class="toolbar">
      <button onClick={() => zoomTo(0, end)}>all (f)</button>
      {last ? <button onClick={() => zoomTo(last[1] - last[2] * 0.03, last[1] + last[2] * 1.03)}>one jitted call</button> : null}
      <span class="dim">scroll to zoom, drag to move; <kbd>w</kbd> <kbd>s</kbd> zoom, <kbd>a</kbd> <kbd>d</kbd> move. Repeated runs are added
        up: the first ones are shown kernel by kernel</span>
    </div>
    <div class="timeline-frame">
      <canvas ref={canvas} aria-label="timeline" onMouseMove={(e) => { const [s] = at(e); setTip(s ? [s, e.clientX, e.clientY] : null); }}
        onMouseLeave={() => setTip(null)} onClick={(e) => { const [s] = at(e); if (s && s[3] >= 0) select({ kernel: s[3] }); }} />
      {tip ? <Tip span={tip[0]} x={tip[1]} y={tip[2]} /> : null}
    </div>
    {kernel >= 0 ? <KernelCard kernel={kernels[kernel]} /> : null}
    <Groups />
  </div>;
}

function Tip({ span: [kind, , duration, id, count], x, y }) {
  const k = id >= 0 ? kernels[id] : null;
  return <div class="tip" style={{ left: Math.min(x + 14, window.innerWidth - 340), top: y + 14 }}>
    <b>{kind === 3 ? k?.name : kind === 2 ? `one run of ${plural(count, "kernel")}` : `${data.kinds[kind]} ${plural(count, "kernel")}`}</b>
    <div>{time(duration * 1e3)}</div>
    {kind === 3 && k ? <div>{lineName(k.line)}, {gflops(k).toFixed(1)} GFLOPS, {gigabytes(k).toFixed(1)} GB/s, {percent(k.share)} of peak</div> : null}
  </div>;
}

function Groups() {
  const list = [...data.groups].sort((a, b) => b.ns - a.ns).slice(0, 12);
  return <section class="card"><h2>What was run, and how often</h2>
    <table><thead><tr><th>first kernel's line</th><th class="n">kernels</th><th class="n">runs</th><th class="n">total</th><th class="n">each</th><th></th></tr></thead>
      <tbody>{list.map((g) => <tr onClick={() => select({ kernel: g.kernels[0], view: "schedule" })}>
        <td>{g.kernels.length ? lineName(kernels[g.kernels[0]].line) : ""}</td><td class="n">{g.kernels.length}</td>
        <td class="n">{g.runs.toLocaleString("en")}</td><td class="n">{time(g.ns)}</td><td class="n">{time(g.ns / g.runs)}</td>
        <td>{g.replay ? <span class="badge">jit</span> : null}</td></tr>)}</tbody></table></section>;
}

function nice(step) {
  const e = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].map((m) => m * e).find((s) => s >= step);
}
