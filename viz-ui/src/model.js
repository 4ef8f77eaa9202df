// The page's data and what follows from it. Rows are described in glassgrad/viz/page_data.py.

export const data = JSON.parse(document.getElementById("data").textContent);

// Fields of a node's row.
export const OP = 0, KIND = 1, DTYPE = 2, SHAPE = 3, SRC = 4, ARG = 5, LINE = 6, CALL = 7, BACKWARD = 8;

export const kernels = data.kernels.map((k, id) => ({ ...k, id }));
export const ran = kernels.filter((k) => k.runs);
export const bySlowest = [...ran].sort((a, b) => b.ns - a.ns);
export const kernelTime = ran.reduce((sum, k) => sum + k.ns, 0) || 1;

export const lineText = (line) => {
  if (line < 0) return "";
  const [file, number] = data.lines[line];
  const text = data.files[file].text;
  return text === null ? "" : (text.split("\n")[number - 1] || "").trim();
};
export const lineName = (line) =>
  line < 0 ? "no line of yours" : `${data.files[data.lines[line][0]].name}:${data.lines[line][1]}`;

// -- calls --------------------------------------------------------------------------------------------------
export const callPath = (call) => {
  const path = [];
  for (; call >= 0; call = data.calls[call][0]) path.unshift(call);
  return path;
};
export const callName = (call) => (call < 0 ? "" : data.calls[call][1]);
// The layer that a call is part of, or the call itself.
export const layerOf = (call) => {
  const path = callPath(call);
  for (let i = path.length - 1; i >= 0; i--) if (data.calls[path[i]][2] !== "method") return path[i];
  return path.length ? path[path.length - 1] : -1;
};
export const layerName = (call) => {
  const path = callPath(layerOf(call)).filter((c) => data.calls[c][2] !== "function");
  const shown = (path.length ? path : callPath(call).slice(-1)).slice(-2).map(callName);
  return shown.join(" / ");
};

// -- lines: how much time was spent for each -------------------------------------------------------------------
export const timeOfLine = new Map();
for (const k of ran) if (k.line >= 0) timeOfLine.set(k.line, (timeOfLine.get(k.line) || 0) + k.ns);
export const kernelsOfLine = (line) =>
  bySlowest.filter((k) => k.line === line || k.lines.some(([l]) => l === line));

// The graph that took most time is the one to open first.
export const graphTime = data.graphs.map((g) => g.kernels.reduce((sum, k) => sum + kernels[k].ns, 0));
export const graphsBySlowest = data.graphs.map((_, i) => i).sort((a, b) =>
  graphTime[b] - graphTime[a] || data.graphs[b].nodes.length - data.graphs[a].nodes.length);
export const graphName = (g) => {
  const graph = data.graphs[g];
  const sink = graph.nodes[graph.sinks[0]];
  const path = sink ? callPath(sink[CALL]).filter((c) => data.calls[c][2] === "function") : [];
  const where = path.length ? callName(path[path.length - 1]) : lineName(graph.line);
  return `${where}: ${graph.nodes.length} nodes, ${graph.kernels.length} kernel${graph.kernels.length === 1 ? "" : "s"}`;
};

// -- which kernel makes what another reads ---------------------------------------------------------------------
export const kernelEdges = (g) => {
  const writer = new Map(), edges = [];
  for (const k of data.graphs[g].kernels) {
    for (const slot of kernels[k].reads) if (writer.has(slot)) edges.push([writer.get(slot), k]);
    for (const slot of kernels[k].writes) writer.set(slot, k);
  }
  return edges;
};

// -- numbers ---------------------------------------------------------------------------------------------------
export const time = (ns) =>
  ns >= 1e9 ? `${(ns / 1e9).toFixed(2)} s` : ns >= 1e6 ? `${(ns / 1e6).toFixed(ns >= 1e8 ? 0 : 1)} ms`
    : ns >= 1e3 ? `${(ns / 1e3).toFixed(ns >= 1e5 ? 0 : 1)} µs` : `${Math.round(ns)} ns`;
export const bytes = (n) =>
  n >= 1 << 30 ? `${(n / (1 << 30)).toFixed(2)} GiB` : n >= 1 << 20 ? `${(n / (1 << 20)).toFixed(1)} MiB`
    : n >= 1024 ? `${(n / 1024).toFixed(1)} KiB` : `${n} B`;
export const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)}%`;
export const gflops = (k) => (k.ns ? k.operations * k.runs / k.ns : 0);
export const gigabytes = (k) => (k.ns ? k.bytes * k.runs / k.ns : 0);
// A line as a table shows it: the file only where there are several.
export const lineShort = (line) => line < 0 ? "–" : data.files.length > 1 ? lineName(line) : `line ${data.lines[line][1]}`;
export const shapeText = (shape) => `[${shape.join(", ")}]`;
export const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
