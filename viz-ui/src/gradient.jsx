// Forward and backward side by side: for each layer, its nodes, kernels and time, and those of its gradient.
import { h, Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { BACKWARD, CALL, KIND, OP, SHAPE, LINE, callName, callPath, data, kernels, layerName, layerOf, plural, shapeText, time } from "./model.js";
import { GraphPicker, kindOf } from "./graph.jsx";
import { Bar, Empty, KernelLink } from "./parts.jsx";
import { select, useSelected } from "./state.js";

export function Gradient({ query }) {
  const { graph, line } = useSelected();
  const [open, setOpen] = useState(-2);
  const withBackward = data.graphs.map((g, i) => i).filter((i) => data.graphs[i].nodes.some((n) => n[BACKWARD]));
  const mine = withBackward.includes(graph) ? graph : withBackward[0];
  const layers = useMemo(() => {
    const found = new Map();
    const at = (call) => {
      const id = layerOf(call);
      if (!found.has(id)) found.set(id, { id, sides: [{ nodes: [], kernels: [], ns: 0 }, { nodes: [], kernels: [], ns: 0 }] });
      return found.get(id).sides;
    };
    if (mine === undefined) return [];
    data.graphs[mine].nodes.forEach((n, i) => { if (n[KIND] !== "leaf") at(n[CALL])[n[BACKWARD]].nodes.push(i); });
    for (const k of data.graphs[mine].kernels) {
      const side = at(kernels[k].call)[kernels[k].backward];
      side.kernels.push(k);
      side.ns += kernels[k].ns;
    }
    return [...found.values()].sort((a, b) => a.id - b.id);      // calls are numbered in the order the program makes them
  }, [mine]);
  if (mine === undefined)
    return <Empty>No gradient was computed while this was recorded: call <code>loss.backward()</code>.</Empty>;
  const rows = data.graphs[mine].nodes;
  const most = Math.max(1, ...layers.flatMap((l) => l.sides.map((s) => s.ns)));
  const shown = layers.filter((l) => !query || layerName(l.id).toLowerCase().includes(query.toLowerCase()));
  const Side = ({ side, name }) => <td class={"side " + name}>
    <div class="bars"><Bar part={side.ns / most} kind={name} /><span>{side.ns ? time(side.ns) : side.nodes.length ? "fused" : "–"}</span></div>
    <span class="dim">{plural(side.nodes.length, "node")}, {plural(side.kernels.length, "kernel")}</span>
  </td>;
  const total = (i) => layers.reduce((sum, l) => sum + l.sides[i].ns, 0);
  return <div class="view gradient-view">
    <div class="toolbar"><GraphPicker graph={mine} /><span class="dim">forward {time(total(0))}, backward {time(total(1))}; a layer whose kernels
      are "fused" is computed inside those of a neighbour</span></div>
    <section class="card"><table class="gradient">
      <thead><tr><th>layer</th><th>forward</th><th>backward: its gradient</th></tr></thead>
      <tbody>{shown.map((l) => <Fragment>
        <tr class={open === l.id ? "on" : ""} tabIndex={0} onClick={() => setOpen(open === l.id ? -2 : l.id)}
          onKeyDown={(e) => e.key === "Enter" && setOpen(open === l.id ? -2 : l.id)}>
          <td><b>{callName(l.id) || "your program"}</b><div class="dim path">{callPath(l.id).slice(0, -1).map(callName).join(" › ")}</div></td>
          <Side side={l.sides[0]} name="forward" /><Side side={l.sides[1]} name="backward" />
        </tr>
        {open === l.id ? <tr class="details"><td></td>{l.sides.map((side) => <td>
          {side.kernels.map((k) => <div><KernelLink kernel={kernels[k]} /> <span class="dim">{time(kernels[k].ns)}</span></div>)}
          <div class="chips">{side.nodes.slice(0, 80).map((n) => <button class={"chip mono k-" + kindOf(rows[n]) + (rows[n][LINE] === line && line >= 0 ? " lit" : "")}
            onClick={() => select({ view: "graph", graph: mine, node: n, line: rows[n][LINE] })}>{rows[n][OP]} {shapeText(rows[n][SHAPE])}</button>)}
            {side.nodes.length > 80 ? <span class="dim">and {side.nodes.length - 80} more</span> : null}</div>
        </td>)}</tr> : null}
      </Fragment>)}</tbody>
    </table></section>
  </div>;
}
