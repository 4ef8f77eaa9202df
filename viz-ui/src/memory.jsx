// Memory over time, what was alive at the peak, and what lies between the kernels of a schedule.
import { h, Fragment } from "preact";
import { bytes, callName, callPath, data, kernels, layerName, lineName, plural, shapeText, time } from "./model.js";
import { Bar, Empty, LineLink } from "./parts.jsx";
import { select, useSelected } from "./state.js";

const W = 900, H = 220, LEFT = 70, BOTTOM = 26;

export function Memory() {
  const { line, graph } = useSelected();
  const m = data.memory;
  if (!m.samples.length) return <Empty>Nothing ran while this was recorded.</Empty>;
  const end = Math.max(data.totals.wall / 1e3, 1), most = Math.max(1, m.peak) * 1.08;
  const px = (t) => LEFT + t / end * (W - LEFT - 10), py = (v) => 10 + (1 - v / most) * (H - BOTTOM - 10);
  let path = `M${px(m.samples[0][0])} ${py(0)}`;
  m.samples.forEach(([t, v], i) => { path += ` L${px(t).toFixed(1)} ${py(i ? m.samples[i - 1][1] : v).toFixed(1)} L${px(t).toFixed(1)} ${py(v).toFixed(1)}`; });
  path += ` L${px(end)} ${py(m.samples[m.samples.length - 1][1])} L${px(end)} ${py(0)} Z`;
  const late = m.peak_time > end / 2;
  return <div class="view memory-view">
    <section class="card">
      <h2>Memory over time <span class="dim">at most {bytes(m.peak)}</span></h2>
      <svg class="plot" viewBox={`0 0 ${W} ${H}`} role="img" aria-label="memory over time">
        {[0, 0.25, 0.5, 0.75, 1].map((f) => <g class="tick"><line x1={LEFT} x2={W - 10} y1={py(m.peak * f)} y2={py(m.peak * f)} />
          <text x={LEFT - 6} y={py(m.peak * f) + 4} text-anchor="end">{bytes(m.peak * f)}</text></g>)}
        <path class="area" d={path} />
        <g class="peak-mark"><line x1={px(m.peak_time)} x2={px(m.peak_time)} y1="6" y2={H - BOTTOM} />
          <text x={px(m.peak_time) + (late ? -6 : 6)} y="16" text-anchor={late ? "end" : "start"}>peak, at {time(m.peak_time * 1e3)}</text></g>
        <text class="axis" x={LEFT} y={H - 6}>0</text><text class="axis" x={W - 10} y={H - 6} text-anchor="end">{time(end * 1e3)}</text>
      </svg>
    </section>
    <section class="card">
      <h2>Alive at the peak <span class="dim">largest first</span></h2>
      <table class="alive"><thead><tr><th></th><th class="n">bytes</th><th>value</th><th>kept</th><th>made by</th><th>layer</th></tr></thead>
        <tbody>{m.values.map(([n, dtype, shape, l, between, call]) =>
          <tr class={line >= 0 ? (l === line ? "lit" : "faded") : ""} onClick={() => l >= 0 && select({ line: l })}>
            <td class="share"><Bar part={n / m.values[0][0]} /></td><td class="n">{bytes(n)}</td>
            <td class="mono">{dtype ? `${dtype}${shapeText(shape)}` : "other memory between kernels"}</td>
            <td>{between ? "between two kernels" : "a tensor"}</td><td><LineLink line={l} /></td><td class="layer">{layerName(call)}</td></tr>)}
        </tbody></table>
      {m.others ? <p class="dim">and {plural(m.others, "smaller value")}, {bytes(m.other_bytes)} together</p> : null}
    </section>
    {graph >= 0 ? <Between graph={graph} /> : null}
  </div>;
}

function Between({ graph }) {
  const { kernel } = useSelected();
  const g = data.graphs[graph];
  const most = Math.max(1, ...g.live);
  if (g.live.length < 2 || most === 1) return null;
  return <section class="card">
    <h2>Between the kernels of a schedule <span class="dim">values that one kernel leaves for a later one: at most {bytes(most)}</span></h2>
    <div class="columns-plot">{g.live.map((v, i) => <i style={{ height: `${100 * v / most}%` }} class={g.kernels[i] === kernel ? "selected" : ""}
      title={`while kernel ${i} runs (${kernels[g.kernels[i]].name}): ${bytes(v)}`} onClick={() => select({ kernel: g.kernels[i] })} />)}</div>
    <p class="dim">one column per kernel, in the order they run</p>
  </section>;
}
