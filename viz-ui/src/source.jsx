// The user's program, with the time that was spent for each line. Select a line and its nodes and kernels light up.
import { h, Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { data, kernelTime, lineName, time, timeOfLine, percent } from "./model.js";
import { pressed, select, useSelected } from "./state.js";

const WORDS = /(#.*$)|("""|'''|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\b(def|class|return|for|in|if|else|elif|while|with|as|import|from|not|and|or|is|None|True|False|lambda|yield|try|except|finally|raise|pass|global|assert|del|async|await)\b|(@\w+)|\b(\d[\w.]*)\b/g;

export function Code({ text }) {
  const parts = [];
  let at = 0;
  for (const m of text.matchAll(WORDS)) {
    if (m.index > at) parts.push(text.slice(at, m.index));
    const kind = m[1] ? "comment" : m[2] ? "string" : m[3] ? "word" : m[4] ? "decorator" : "number";
    parts.push(<span class={"c-" + kind}>{m[0]}</span>);
    at = m.index + m[0].length;
  }
  parts.push(text.slice(at));
  return <Fragment>{parts}</Fragment>;
}

export function SourcePane() {
  const { line } = useSelected();
  const [open, setOpen] = useState(true);
  const hottest = useMemo(() => {
    const total = new Map();
    for (const [l, ns] of timeOfLine) total.set(data.lines[l][0], (total.get(data.lines[l][0]) || 0) + ns);
    return [...total].sort((a, b) => b[1] - a[1])[0]?.[0] ?? 0;
  }, []);
  const [chosen, setFile] = useState(null);
  useEffect(() => setFile(null), [line]);
  const file = chosen ?? (line >= 0 ? data.lines[line][0] : hottest);
  const body = useRef(null), shownHottest = useRef(false);
  useEffect(() => {
    const row = body.current?.querySelector(".src-line.selected"), hot = body.current?.querySelector(".src-line.hottest");
    if (row) row.scrollIntoView({ block: "nearest" });
    else if (!shownHottest.current && hot) hot.scrollIntoView({ block: "center" });      // at first, not after Esc
    shownHottest.current = true;
  }, [line, file]);
  if (!data.files.length) return null;
  const numberOf = useMemo(() => new Map(data.lines.map(([f, n], i) => [f + ":" + n, i])), []);
  const most = Math.max(1, ...timeOfLine.values());
  if (!open)
    return <button class="source-closed" title="show your program" onClick={() => setOpen(true)}>your program</button>;
  const shown = data.files[file];
  return <aside class="source" aria-label="your program">
    <header>
      <select aria-label="file" value={file} onChange={(e) => setFile(+e.target.value)}>
        {data.files.map((f, i) => <option value={i}>{f.name}</option>)}
      </select>
      <span class="dim path" title={shown.path}>{shown.path}</span>
      <button title="hide" onClick={() => setOpen(false)}>‹</button>
    </header>
    <div class="src-body" ref={body}>
      {shown.text === null
        ? <Gone file={file} line={line} />
        : shown.text.replace(/\n$/, "").split("\n").map((text, i) => {
          const id = numberOf.get(file + ":" + (i + 1));
          const ns = id === undefined ? 0 : timeOfLine.get(id) || 0;
          return <div class={"src-line" + (id === line && line >= 0 ? " selected" : "") + (id !== undefined ? " used" : "") + (ns && ns === most ? " hottest" : "")}
            {...(id === undefined ? {} : pressed(() => select({ line: id === line ? -1 : id, node: -1 })))}
            title={ns ? `${time(ns)}, ${percent(ns / kernelTime)} of all kernels` : ""}>
            <span class="num">{i + 1}</span>
            <span class="line-time">{ns > kernelTime / 200 ? percent(ns / kernelTime) : ""}</span>
            <span class="heat"><i style={{ width: `${ns ? Math.max(6, 100 * ns / most) : 0}%` }} /></span>
            <code><Code text={text} /></code>
          </div>;
        })}
    </div>
  </aside>;
}

function Gone({ file, line }) {
  const lines = data.lines.map((l, i) => [i, ...l]).filter(([, f]) => f === file).sort((a, b) => a[2] - b[2]);
  return <div class="gone">
    <p>This file is not there any more; these of its lines ran:</p>
    {lines.map(([i]) => <div class={"src-line used" + (i === line ? " selected" : "")} {...pressed(() => select({ line: i }))}>
      <code>{lineName(i)}</code></div>)}
  </div>;
}
