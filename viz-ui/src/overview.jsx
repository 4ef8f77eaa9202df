// What ran, by cost: the slowest kernel with its line and the reason, where the time went, every kernel, a roofline.
import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import { bySlowest, bytes, data, gflops, gigabytes, kernelTime, kernelsOfLine, layerName, lineName, percent, plural, time }
  from "./model.js";
import { Bar, Bound, Empty, KernelCard, KernelLink, LineLink } from "./parts.jsx";
import { Roofline } from "./roofline.jsx";
import { select, useSelected } from "./state.js";

export function Overview({ query }) {
  const { line } = useSelected();
  const [all, setAll] = useState(false);
  if (!bySlowest.length)
    return <Empty>No kernel ran while this was recorded. Call <code>.realize()</code>, <code>.numpy()</code> or
      <code>.item()</code> on a tensor, and run again.</Empty>;
  const found = (line >= 0 ? kernelsOfLine(line) : bySlowest).filter((k) => matches(k, query));
  const slowest = found[0] || bySlowest[0];
  const shown = all ? found : found.slice(0, 25);
  return <div class="view overview">
    <section class="headline">
      <p class="eyebrow">{line >= 0 ? `slowest kernel of ${lineName(line)}` : "slowest kernel"}
        {line >= 0 ? <button class="chip" onClick={() => select({ line: -1 })}>all lines ×</button> : null}</p>
      <KernelCard kernel={slowest} />
    </section>
    <Spent />
    <section class="card">
      <h2>Kernels by cost <span class="dim">{plural(found.length, "kernel")}, {time(kernelTime)} together</span></h2>
      <table class="kernels">
        <thead><tr><th></th><th>kernel</th><th>line</th><th>layer</th><th class="n">runs</th><th class="n">each</th>
          <th class="n">GFLOPS</th><th class="n">GB/s</th><th>bound by</th><th>of peak</th></tr></thead>
        <tbody>{shown.map((k) => <tr key={k.id} tabIndex={0} onClick={() => select({ kernel: k.id, view: "kernel", pass: "" })}
          onKeyDown={(e) => e.key === "Enter" && select({ kernel: k.id, view: "kernel", pass: "" })}>
          <td class="share"><Bar part={k.ns / bySlowest[0].ns} /><span>{percent(k.ns / kernelTime, 1)}</span></td>
          <td class="name"><KernelLink kernel={k} />{k.backward ? <span class="dim" title="backward"> ∂</span> : null}</td>
          <td><LineLink line={k.line} code={false} short /></td>
          <td class="layer" title={layerName(k.call)}>{layerName(k.call).split(" / ").pop()}</td>
          <td class="n">{k.runs.toLocaleString("en")}</td><td class="n">{time(k.ns / Math.max(1, k.runs))}</td>
          <td class="n">{gflops(k).toFixed(1)}</td><td class="n">{gigabytes(k).toFixed(1)}</td>
          <td><Bound kernel={k} /></td>
          <td class="peak"><Bar part={k.share} kind={k.bound} /><span>{percent(k.share)}</span></td>
        </tr>)}</tbody>
      </table>
      {found.length > shown.length
        ? <button class="more" onClick={() => setAll(true)}>show all {found.length}</button> : null}
    </section>
    <Roofline list={found} />
    <Machine />
  </div>;
}

export const matches = (k, query) => !query ||
  `${k.name} ${lineName(k.line)} ${layerName(k.call)} ${k.bound} ${k.reasons.join(" ")}`.toLowerCase()
    .includes(query.toLowerCase());

function Spent() {
  const t = data.totals;
  const launch = Math.max(0, t.run - t.kernels);
  const python = Math.max(0, t.wall - t.schedule - t.compile - t.run);
  const parts = [["kernels", t.kernels, "the generated code"], ["launch", launch, "binding memory and starting kernels"],
    ["compile", t.compile, "lowering, optimizing and compiling kernels that were new"],
    ["schedule", t.schedule, "from graph to kernels"], ["python", python, "your program and everything else"]];
  return <section class="card">
    <h2>Where the time went <span class="dim">{time(t.wall)} from the import to the end</span></h2>
    <div class="stack">{parts.map(([name, ns, says]) =>
      <i class={"part-" + name} style={{ flexGrow: ns / t.wall }} title={`${name}: ${time(ns)}, ${says}`} />)}</div>
    <div class="legend">{parts.map(([name, ns, says]) =>
      <span title={says}><i class={"part-" + name} />{name} <b>{time(ns)}</b> <span class="dim">{percent(ns / t.wall)}</span></span>)}
    </div>
  </section>;
}

function Machine() {
  return <section class="card">
    <h2>Machine and memory</h2>
    {Object.entries(data.devices).map(([name, d]) => <p><b>{name}</b> {d.description}. Measured at best:{" "}
      {d.gflops.toFixed(0)} GFLOPS in a matrix product, {d.gigabytes.toFixed(1)} GB/s in a sum of two large arrays.</p>)}
    <p>At most <b>{bytes(data.memory.peak)}</b> of tensors were in memory.{" "}
      <button class="link" onClick={() => select({ view: "memory" })}>what was alive then</button></p>
    {data.graphs_left_out ? <p class="dim">{plural(data.graphs_left_out, "more graph")} were scheduled and are counted, but
      not drawn.</p> : null}
  </section>;
}
