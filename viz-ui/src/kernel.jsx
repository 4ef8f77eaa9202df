// One kernel through every pass: what each changed, the loop tree beside the generated source, the assembly.
import { h, Fragment } from "preact";
import { useLayoutEffect, useMemo, useState } from "preact/hooks";
import { diffLines } from "diff";
import { LINE, OP, SHAPE, bySlowest, data, kernelTime, kernels, lineName, lineText, percent, plural, shapeText } from "./model.js";
import { Empty, KernelCard } from "./parts.jsx";
import { pressed, select, selected, useSelected } from "./state.js";

export function KernelView({ query }) {
  const { kernel, tab, node, graph } = useSelected();
  const [picked, setPicked] = useState([-1, []]);          // a kernel, and its nodes that the row computes that was clicked last
  if (kernel < 0) return <Empty>No kernel ran while this was recorded.</Empty>;
  const it = kernels[kernel];
  const program = data.programs[it.program];
  const rows = it.graph >= 0 ? data.graphs[it.graph].nodes : [];
  const pick = (lines, ops) => {          // a row of a listing was clicked: select its line, and show the nodes it computes
    const ofLines = it.nodes.filter((n) => lines.includes(rows[n][LINE])), exact = ofLines.filter((n) => ops.includes(rows[n][OP]));
    const found = exact.length ? exact : ofLines;
    setPicked([kernel, found]);
    select({ line: lines[lines.length - 1], node: found.length ? found[found.length - 1] : -1 });
  };
  const tabs = [["passes", "Passes"], ["linked", "Loop tree and source"], ["assembly", "Assembly"]];
  return <div class="view kernel-view">
    <div class="toolbar">
      <select aria-label="kernel" value={kernel} onChange={(e) => select({ kernel: +e.target.value, pass: "" })}>
        {(it.runs ? bySlowest : [it, ...bySlowest]).map((k) =>
          <option value={k.id}>{`${percent(k.ns / kernelTime, 1)}  ${k.name}  ${lineName(k.line)}`}</option>)}
      </select>
      <span class="switch" role="tablist">{tabs.map(([id, name]) =>
        <button role="tab" class={tab === id ? "on" : ""} aria-selected={tab === id} onClick={() => select({ tab: id })}>{name}</button>)}</span>
    </div>
    <KernelCard kernel={it} open={false} />
    <Picked graph={graph} nodes={picked[0] === kernel ? picked[1] : it.nodes.includes(node) ? [node] : []} />
    {!program ? <Empty>This kernel is not among the {data.programs.length} slowest, which alone are shown pass by pass.
      Run it by itself, or use <code>DEBUG=4</code>.</Empty>
      : tab === "linked" ? <Linked program={program} pick={pick} /> : tab === "assembly" ? <Assembly program={program} pick={pick} />
        : <Passes kernel={it} program={program} query={query} pick={pick} />}
  </div>;
}

// The nodes of the graph that a row of a listing computes: a link to each.
function Picked({ graph, nodes }) {
  const { node } = useSelected();
  if (!nodes.length) return null;
  const rows = data.graphs[graph].nodes;
  return <p class="picked"><span class="label">nodes</span> {nodes.slice(0, 12).map((n) =>
    <button class={"chip mono" + (n === node ? " lit" : "")} title="show it in the graph" onClick={() => select({ view: "graph", node: n, line: rows[n][LINE] })}>
      {rows[n][OP]} {shapeText(rows[n][SHAPE])}</button>)}{nodes.length > 12 ? <span class="dim">and {nodes.length - 12} more</span> : null}
  </p>;
}

// -- passes ---------------------------------------------------------------------------------------------------
// The passes over the whole graph come first, then those over the kernel: one line from tensor to text.
function allPasses(kernel, program) {
  const graph = kernel.graph >= 0 ? data.graphs[kernel.graph].passes : [];
  const rows = [...graph.map((p) => ({ ...p, whole: true })), ...program.passes.map((p) => ({ ...p, whole: false }))];
  let before = null, last = null;
  return rows.flatMap((p, i) => {
    const fresh = i === 0 || p.whole !== rows[i - 1].whole || kindOfText(p) !== last;      // another kind of text: nothing to compare with
    const row = { ...p, id: `${p.whole ? "graph" : "kernel"}:${p.name}`, before: fresh ? null : before, changed: p.text !== null };
    const steps = stepsOf(row);
    if (p.text !== null) { before = p.text; last = kindOfText(p); }
    return [row, ...steps];
  });
}
// The moves of a pass, one after another: each is compared with the tree before it.
function stepsOf(pass) {
  let before = pass.before;
  return pass.steps.map((s) => {
    const row = { ...s, whole: false, move: true, id: `${pass.id}:${s.name}`, before, changed: s.text !== before };
    before = s.text;
    return row;
  });
}
const kindOfText = (p) => p.stage === "text" ? "text" : p.stage === "kernel" ? "kernel"
  : p.stage === "graph" || p.name === "separate_results" ? "graph" : p.name;

function Passes({ kernel, program, query, pick }) {
  const { pass, line } = useSelected();
  const [hidden, setHidden] = useState(true);
  const passes = useMemo(() => allPasses(kernel, program), [kernel, program]);
  const words = query.toLowerCase();
  const hits = (p) => words && p.text ? p.text.toLowerCase().split("\n").filter((l) => l.includes(words)).length : 0;
  const shown = passes.filter((p) => p.changed || !hidden);
  const choose = (id) => shown.find((p) => p.id === id) || shown.find((p) => p.id === "kernel:optimize") || shown[shown.length - 1];
  const chosen = choose(pass);
  const step = (by) => {          // from what is selected now: a second key may arrive before the first is drawn
    const at = shown.indexOf(choose(selected().pass)) + by;
    if (at >= 0 && at < shown.length) select({ pass: shown[at].id });
  };
  useLayoutEffect(() => {
    const keys = (e) => {
      if (e.target.matches("input, select, textarea")) return;
      if (e.key === "n" || e.key === "ArrowRight") step(1); else if (e.key === "p" || e.key === "ArrowLeft") step(-1);
    };
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  });
  const same = passes.filter((p) => !p.changed).length;
  return <div class="passes">
    <nav aria-label="passes">
      {["graph", "schedule", "kernel", "text"].map((stage) => <Fragment>
        {shown.some((p) => p.stage === stage) ? <h4>{stage}</h4> : null}
        {shown.filter((p) => p.stage === stage).map((p) =>
          <button key={p.id} class={(p === chosen ? "on " : "") + (p.changed ? "" : "same") + (p.move ? " move-step" : "")} onClick={() => select({ pass: p.id })} title={p.does}>
            {p.name}{p.whole ? <span class="dim"> whole graph</span> : null}
            {hits(p) ? <Count n={hits(p)} /> : null}
          </button>)}
      </Fragment>)}
      {same ? <button class="toggle" onClick={() => setHidden(!hidden)}>{hidden ? `show ${same} that changed nothing` : "hide those that changed nothing"}</button> : null}
      <p class="dim"><kbd>n</kbd> next <kbd>p</kbd> previous</p>
    </nav>
    {chosen ? <PassText pass={chosen} line={line} words={words} pick={pick} moves={chosen.name === "optimize" ? program.moves : []} /> : null}
  </div>;
}

const Count = ({ n }) => <span class="count">{n}</span>;

function PassText({ pass, line, words, moves, pick }) {
  const [mode, setMode] = useState("diff");
  const compare = mode === "diff" && pass.before !== null && pass.changed;
  const rows = useMemo(() => compare ? diffRows(pass.before, pass.text) : (pass.text ?? pass.before ?? "").split("\n").map((text, i) => ({ text, at: i, kind: "" })),
    [pass, compare]);
  const folded = useMemo(() => compare ? fold(rows) : rows, [rows, compare]);
  return <section class="pass">
    <header>
      <h3>{pass.name} <span class="dim mono">{pass.file}</span></h3>
      <p>{pass.does}</p>
      {moves.length ? <p class="moves"><span class="label">moves</span> {moves.map(([move, does]) => <span class="move"><code>{move}</code> {does}</span>)}</p> : null}
      {pass.rules.length ? <table class="rules"><thead><tr><th>rule</th><th class="n">times</th><th>why</th><th>first</th></tr></thead>
        <tbody>{pass.rules.map(([name, times, why, a, b]) => <tr><td class="mono">{name}</td><td class="n">{times}</td><td>{why}</td>
          <td class="mono small">{a} <b>→</b> {b}</td></tr>)}</tbody></table> : null}
      <span class="switch"><button class={mode === "diff" ? "on" : ""} onClick={() => setMode("diff")}>what changed</button>
        <button class={mode === "text" ? "on" : ""} onClick={() => setMode("text")}>all of it</button></span>
      {!pass.changed ? <span class="dim"> this pass changed nothing here</span> : pass.before === null ? <span class="dim"> the first text of its kind</span> : null}
    </header>
    <Listing rows={folded} links={pass.links} line={line} words={words} pick={pick} />
  </section>;
}

export function diffRows(before, after) {
  const rows = [];
  let at = 0;
  for (const part of diffLines(before + "\n", after + "\n")) {
    for (const text of part.value.replace(/\n$/, "").split("\n")) {
      if (part.removed) rows.push({ text, at: -1, kind: "gone" });
      else rows.push({ text, at: at++, kind: part.added ? "new" : "" });
    }
  }
  return rows;
}

// Long runs of lines that stayed the same become one row.
function fold(rows) {
  const near = 3, out = [];
  const keep = new Uint8Array(rows.length);
  rows.forEach((r, i) => { if (r.kind) for (let j = Math.max(0, i - near); j <= Math.min(rows.length - 1, i + near); j++) keep[j] = 1; });
  for (let i = 0; i < rows.length; i++) {
    if (keep[i] || rows.length < 40) { out.push(rows[i]); continue; }
    let j = i;
    while (j < rows.length && !keep[j]) j++;
    out.push({ skip: j - i });
    i = j - 1;
  }
  return out;
}

const MOST_ROWS = 1500;
// `opsOf` says which ops a row computes; without it, a row stands for all nodes of its lines.
export function Listing({ rows, links, line, words, lit, onRow, pick, opsOf = () => [] }) {
  const [most, setMost] = useState(MOST_ROWS);
  const { node, graph } = useSelected();
  const chosen = node >= 0 ? data.graphs[graph]?.nodes[node] : null;
  return <div class="listing mono">
    {rows.slice(0, most).map((r, i) => {
      if (r.skip) return <div class="skip">{plural(r.skip, "line")} {r.words || "stayed the same"}</div>;
      const own = (r.at >= 0 && links[r.at]) || [];
      const hit = words && r.text.toLowerCase().includes(words);
      return <div key={i} class={"row " + r.kind + (own.length ? " linked" : "") + (line >= 0 && own.includes(line) ? " lit" : "")
        + (hit ? " hit" : "") + (lit && lit.has(r.at) ? " pair" : "")
        + (chosen && own.includes(chosen[LINE]) && opsOf(r.at).includes(chosen[OP]) ? " of-node" : "")}
        title={own.map((l) => `${lineName(l)}  ${lineText(l)}`).join("\n")}
        onMouseEnter={onRow ? () => onRow(r.at) : undefined}
        {...(own.length ? pressed(() => pick(own, opsOf(r.at))) : {})}>
        <span class="sign">{r.kind === "gone" ? "−" : r.kind === "new" ? "+" : ""}</span><code>{r.text || " "}</code>
        {own.length ? <span class="from">{lineName(own[own.length - 1])}</span> : null}
      </div>;
    })}
    {rows.length > most ? <button class="more" onClick={() => setMost(rows.length)}>show {rows.length - most} more lines</button> : null}
  </div>;
}

// -- loop tree and source ---------------------------------------------------------------------------------------
function Linked({ program, pick }) {
  const { line } = useSelected();
  const [at, setAt] = useState([null, -1]);
  const [helpers, setHelpers] = useState(false);
  const loops = [...program.passes].reverse().find((p) => p.stage === "kernel" && p.text);
  const source = [...program.passes].reverse().find((p) => p.stage === "text" && p.text);
  if (!loops || !source) return <Empty>This device shows no source.</Empty>;
  const links = program.source_links, ops = (row) => program.row_ops[row] || [];
  const text = (p) => p.text.split("\n").map((text, at) => ({ text, at, kind: "" }));
  const lines = text(source);
  const first = Math.max(0, lines.findIndex((r) => /^(void|__global__|extern|kernel|__kernel)\b/.test(r.text)));
  const body = helpers ? lines : [...(first ? [{ skip: first, words: "definitions above" }] : []), ...lines.slice(first)];
  const [side, row] = at;
  const litLoops = new Set(side === "source" ? links[row] || [] : side === "loops" ? [row] : []);
  const litSource = new Set(side === "source" ? [row] : links.map((l, i) => l.includes(row) && side === "loops" ? i : -1).filter((i) => i >= 0));
  return <div class="side-by-side">
    <section><h3>Loop tree <span class="dim">{program.moves.length ? program.moves.map(([move]) => move).join(", ") : "as lowered"}</span></h3>
      <Listing rows={text(loops)} links={loops.links} line={line} lit={litLoops} pick={pick} opsOf={ops} onRow={(r) => setAt(["loops", r])} /></section>
    <section><h3>Generated source <span class="dim">hover a line: what it came from lights up</span></h3>
      <button class="link" onClick={() => setHelpers(!helpers)}>{helpers ? "hide" : "show"} definitions</button>
      <Listing rows={body} links={source.links} line={line} lit={litSource} pick={pick} opsOf={(r) => (links[r] || []).flatMap(ops)} onRow={(r) => setAt(["source", r])} /></section>
  </div>;
}

// Each instruction beside the row of the loop tree that it does, and the line that this row came from.
function Assembly({ program, pick }) {
  const { line } = useSelected();
  const [at, setAt] = useState([null, -1]);
  if (!program.assembly) return <Empty>Assembly is kept for the slowest kernels of the CPU device.</Empty>;
  const loops = [...program.passes].reverse().find((p) => p.stage === "kernel" && p.text);
  const tree = loops.text.split("\n").map((text, at) => ({ text, at, kind: "" }));
  const rows = program.assembly.split("\n").map((text, at) => ({ text, at, kind: /^[\w.].*:/.test(text) ? "label-row" : "" }));
  const rowsOf = program.assembly_links, ops = (row) => program.row_ops[row] || [];
  const links = rows.map((r) => (rowsOf[r.at] || []).flatMap((row) => loops.links[row] || []));
  const [side, row] = at;
  const litTree = new Set(side === "assembly" ? rowsOf[row] || [] : side === "tree" ? [row] : []);
  const litCode = new Set(side === "assembly" ? [row] : side === "tree" ? rows.filter((r) => (rowsOf[r.at] || []).includes(row)).map((r) => r.at) : []);
  return <div class="side-by-side">
    <section><h3>Loop tree</h3>
      <Listing rows={tree} links={loops.links} line={line} lit={litTree} pick={pick} opsOf={ops} onRow={(r) => setAt(["tree", r])} /></section>
    <section class="assembly"><h3>Assembly <span class="dim">hover an instruction: the row that it does lights up</span></h3>
      <Listing rows={rows} links={links} line={line} lit={litCode} pick={pick} opsOf={(r) => (rowsOf[r] || []).flatMap(ops)} onRow={(r) => setAt(["assembly", r])} /></section>
  </div>;
}
