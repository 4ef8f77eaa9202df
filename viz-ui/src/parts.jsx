// Small pieces that several views use.
import { h, Fragment } from "preact";
import { Code } from "./source.jsx";
import { bytes, callPath, callName, gflops, gigabytes, kernelTime, layerName, lineName, lineShort, lineText, percent, plural,
  shapeText, time } from "./model.js";
import { select } from "./state.js";

export const BOUND = {
  memory: "moving data", arithmetic: "arithmetic", launch: "starting it", copy: "a copy between devices",
};

export function LineLink({ line, code = true, short = false }) {
  if (line < 0) return <span class="dim">no line of yours</span>;
  return <button class="link line-link" title="show this line" onClick={(e) => { e.stopPropagation(); select({ line }); }}>
    <b>{short ? lineShort(line) : lineName(line)}</b>{code ? <code><Code text={lineText(line)} /></code> : null}
  </button>;
}

// `node` stays selected, where it is given: the lines of the kernel that compute it light up.
export function KernelLink({ kernel, node = -1, line = kernel.line }) {
  return <button class="link mono" onClick={(e) => { e.stopPropagation(); select({ kernel: kernel.id, view: "kernel", pass: "", node, line }); }}>
    {kernel.name || "kernel"}</button>;
}

export const Bar = ({ part, kind = "" }) =>
  <span class={"bar " + kind}><i style={{ width: `${Math.min(100, 100 * part)}%` }} /></span>;

export const Badge = ({ kind, children }) => <span class={"badge " + kind}>{children}</span>;

export function Bound({ kernel }) {
  return <Badge kind={kernel.bound}>{kernel.bound}</Badge>;
}

// Everything that is said of one kernel: the answer to "which line, and why is it slow?".
export function KernelCard({ kernel, open = true }) {
  const each = kernel.ns / Math.max(1, kernel.runs);
  const path = callPath(kernel.call).map(callName);
  return <section class="card kernel-card">
    <h3>
      <KernelLink kernel={kernel} />
      <Bound kernel={kernel} />
      {kernel.backward ? <Badge kind="backward">backward</Badge> : null}
    </h3>
    <div class="facts">
      <Fact name="time">{time(kernel.ns)} <span class="dim">{percent(kernel.ns / kernelTime)} of all kernels</span></Fact>
      <Fact name="runs">{kernel.runs.toLocaleString("en")} × {time(each)}</Fact>
      <Fact name="speed">{gflops(kernel).toFixed(1)} GFLOPS, {gigabytes(kernel).toFixed(1)} GB/s</Fact>
      <Fact name="share of peak">{percent(kernel.share)} <Bar part={kernel.share} kind={kernel.bound} /></Fact>
      <Fact name="result">{shapeText(kernel.shape)} on {kernel.device}</Fact>
    </div>
    <p class="where"><span class="label">line</span> <LineLink line={kernel.line} /></p>
    {kernel.forward >= 0 && kernel.forward !== kernel.line ? <p class="where"><span class="label">grad of</span> <LineLink line={kernel.forward} /></p> : null}
    {path.length ? <p class="where"><span class="label">call</span> <span class="path">{path.join(" › ")}</span></p> : null}
    <p class="why"><span class="label">why</span> Bound by {BOUND[kernel.bound]}: {kernel.why}.</p>
    {open ? <Fragment>
      {kernel.tries.map((words) => <p class="try"><span class="label">try</span> {words}.</p>)}
      <Fused kernel={kernel} />
    </Fragment> : null}
  </section>;
}

export function Fused({ kernel }) {
  const others = kernel.lines.filter(([line]) => line !== kernel.line);
  return <Fragment>
    {kernel.nodes.length ? <p class="fused"><span class="label">fused</span> {plural(kernel.nodes.length, "operation")} in
      one kernel{others.length ? <Fragment>, also of {others.slice(0, 4).map(([line], i) => <Fragment>{i ? ", " : ""}<LineLink line={line} code={false} short /></Fragment>)}
      </Fragment> : null}.</p> : null}
    {kernel.reasons.length ? <p class="fused"><span class="label">stored</span> not fused with what reads it, because:
      {" "}{[...new Set(kernel.reasons)].join("; ")}.</p> : null}
  </Fragment>;
}

export const Fact = ({ name, children }) => <div class="fact"><span class="label">{name}</span><span>{children}</span></div>;

export function Empty({ children }) {
  return <div class="empty">{children}</div>;
}
