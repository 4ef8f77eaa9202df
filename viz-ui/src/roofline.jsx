// A roofline: each kernel by operations per byte and operations per second, under what the machine can do.
import { h } from "preact";
import { data, gflops, kernelTime, lineName, percent, time } from "./model.js";
import { select, useSelected } from "./state.js";

const W = 860, H = 300, LEFT = 56, BOTTOM = 36, TOP = 14, RIGHT = 16;

export function Roofline({ list }) {
  const { kernel } = useSelected();
  const points = list.filter((k) => k.operations && k.bytes && k.ns).slice(0, 400);
  const device = Object.values(data.devices).find((d) => d.gflops && d.gigabytes);
  if (!points.length || !device) return null;
  const x = points.map((k) => k.operations / k.bytes), y = points.map(gflops);
  const ridge = device.gflops / device.gigabytes;
  const [x0, x1] = [Math.log10(Math.min(...x, ridge / 4)) - 0.2, Math.log10(Math.max(...x, ridge * 4)) + 0.2];
  const [y0, y1] = [Math.log10(Math.max(1e-4, Math.min(...y))) - 0.2, Math.log10(Math.max(...y, device.gflops)) + 0.25];
  const px = (v) => LEFT + (Math.log10(v) - x0) / (x1 - x0) * (W - LEFT - RIGHT);
  const py = (v) => TOP + (y1 - Math.log10(v)) / (y1 - y0) * (H - TOP - BOTTOM);
  const ticks = (a, b) => { const t = []; for (let e = Math.ceil(a); e <= b; e++) t.push(10 ** e); return t; };
  const left = 10 ** x0;
  const roof = `M${px(left)} ${py(left * device.gigabytes)} L${px(ridge)} ${py(device.gflops)} L${px(10 ** x1)} ${py(device.gflops)}`;
  const label = (v) => v >= 1e3 ? `${v / 1e3}k` : `${v}`;
  return <section class="card">
    <h2>Roofline <span class="dim">kernels below the slope wait for memory, below the flat part for arithmetic</span></h2>
    <svg class="roofline" viewBox={`0 0 ${W} ${H}`} role="img" aria-label="roofline">
      <clipPath id="plot"><rect x={LEFT} y={TOP} width={W - LEFT - RIGHT} height={H - TOP - BOTTOM} /></clipPath>
      {ticks(x0, x1).map((v) => <g class="tick"><line x1={px(v)} x2={px(v)} y1={TOP} y2={H - BOTTOM} />
        <text x={px(v)} y={H - BOTTOM + 15} text-anchor="middle">{label(v)}</text></g>)}
      {ticks(y0, y1).map((v) => <g class="tick"><line x1={LEFT} x2={W - RIGHT} y1={py(v)} y2={py(v)} />
        <text x={LEFT - 6} y={py(v) + 4} text-anchor="end">{label(v)}</text></g>)}
      <text class="axis" x={W - RIGHT} y={H - 4} text-anchor="end">operations per byte</text>
      <text class="axis" x={LEFT} y={TOP - 3}>GFLOPS</text>
      <g clip-path="url(#plot)">
        <path class="roof" d={roof} />
        {points.map((k, i) => <circle class={k.bound + (k.id === kernel ? " selected" : "")} cx={px(x[i])} cy={py(Math.max(y[i], 10 ** y0))}
          r={3 + 14 * Math.sqrt(k.ns / kernelTime)} onClick={() => select({ kernel: k.id, view: "kernel", pass: "" })}>
          <title>{`${k.name}\n${lineName(k.line)}\n${time(k.ns)} (${percent(k.ns / kernelTime)}), ${gflops(k).toFixed(1)} GFLOPS, ${percent(k.share)} of peak`}</title>
        </circle>)}
      </g>
      <text class="axis" x={W - RIGHT - 4} y={py(device.gflops) - 5} text-anchor="end">{device.gflops.toFixed(0)} GFLOPS measured</text>
    </svg>
  </section>;
}
