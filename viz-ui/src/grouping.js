// A graph's nodes as a tree of calls, and what of it is visible. Only what is expanded is laid out.
import { BACKWARD, CALL, KIND, LINE, OP, SRC, callName, callPath, data, lineName } from "./model.js";

const CHUNK = 60;              // children of a group that are shown one by one; more become groups of neighbours
const FIRST = 26;              // boxes that are open at first

export function groupTree(rows) {
  const home = new Array(rows.length);
  const both = rows.some((r) => r[BACKWARD]) && rows.some((r) => !r[BACKWARD] && r[KIND] !== "leaf");
  const anyCall = rows.some((r) => r[CALL] >= 0);
  const pathOf = (row) => {
    const calls = callPath(row[CALL]);
    const path = anyCall ? calls.map((c) => `c${c}`) : row[LINE] >= 0 ? [`l${row[LINE]}`] : [];
    return both ? [row[BACKWARD] ? "backward" : "forward", ...path] : path;
  };
  const root = { id: "root", name: "", groups: new Map(), nodes: [], parent: null };
  const enter = (path) => {
    let group = root;
    for (const key of path) {
      let inner = group.groups.get(key);
      if (!inner) {
        const name = key[0] === "c" ? callName(+key.slice(1)) : key[0] === "l" ? lineName(+key.slice(1)) : key;
        inner = { id: `${group.id}/${key}`, name, call: key[0] === "c" ? +key.slice(1) : -1, groups: new Map(), nodes: [],
          parent: group };
        group.groups.set(key, inner);
      }
      group = inner;
    }
    return group;
  };
  for (let i = rows.length - 1; i >= 0; i--) {       // readers first: a leaf belongs to its first reader
    const row = rows[i];
    home[i] = row[KIND] === "leaf" && home[i] ? home[i] : enter(pathOf(row));
    for (const s of row[SRC]) if (rows[s][KIND] === "leaf") home[s] = home[i];
  }
  const constant = (i) => rows[i][OP] === "CONST" && rows.length > 1;      // a constant is written in its reader's box
  for (let i = 0; i < rows.length; i++) if (!constant(i)) home[i].nodes.push(i);
  const parents = new Array(rows.length).fill(null);
  const tidy = (group) => {
    let children = [...group.groups.values()].map(tidy).filter(Boolean);
    const nodes = group.nodes;
    while (children.length === 1 && !nodes.length && children[0].children && group.parent) {      // a call that only calls
      const [only] = children;
      group.name = group.name ? `${group.name} › ${only.name}` : only.name;
      if (only.call >= 0) group.call = only.call;
      children = only.children;
    }
    group.children = [...children, ...nodes.map((n) => ({ node: n }))];
    group.count = children.reduce((sum, c) => sum + (c.count || 1), 0) + nodes.length;
    if (!group.count) return null;
    if (group.count === 1 && group.parent) return group.children[0];
    chunk(group);
    return group;
  };
  const chunk = (group) => {
    while (group.children.length > CHUNK) {
      const size = Math.max(CHUNK, Math.ceil(group.children.length / CHUNK));
      const parts = [];
      for (let at = 0; at < group.children.length; at += size) {
        const inner = group.children.slice(at, at + size);
        parts.push({ id: `${group.id}/${size}-${at}`, name: `part ${parts.length + 1}`, call: -1, children: inner,
          count: inner.reduce((sum, c) => sum + (c.count || 1), 0), groups: new Map(), nodes: [] });
      }
      group.children = parts;
    }
  };
  tidy(root);
  root.children = root.children || [];
  const byId = new Map();
  const link = (group) => {
    byId.set(group.id, group);
    for (const c of group.children) {
      if (c.children) { c.parent = group; link(c); } else parents[c.node] = group;
    }
  };
  link(root);
  return { root, parents, byId };
}

// The groups to open at first: large ones from the outside in, while there are few boxes.
export function openAtFirst(tree) {
  const open = new Set(["root"]);
  const queue = tree.root.children.filter((c) => c.children);
  let boxes = tree.root.children.length;
  while (queue.length) {
    queue.sort((a, b) => depth(a) - depth(b) || b.count - a.count);
    const group = queue.shift();
    if (boxes + group.children.length - 1 > FIRST) continue;
    open.add(group.id);
    boxes += group.children.length - 1;
    queue.push(...group.children.filter((c) => c.children));
  }
  return open;
}

const depth = (group) => { let n = 0; for (let g = group; g.parent; g = g.parent) n++; return n; };

// For each node the box that stands for it: itself, or the outermost closed group around it.
export function visible(tree, rows, open) {
  const stands = new Array(rows.length).fill(null);
  const shownGroup = new Map();
  const outermost = (group) => {
    if (!group) return null;
    if (shownGroup.has(group)) return shownGroup.get(group);
    const above = outermost(group.parent);
    const found = above || (open.has(group.id) ? null : group);
    shownGroup.set(group, found);
    return found;
  };
  for (let i = 0; i < rows.length; i++) {
    if (!tree.parents[i]) continue;
    const closed = outermost(tree.parents[i]);
    stands[i] = closed ? closed.id : `n${i}`;
  }
  const seen = new Set(), edges = [];
  for (let i = 0; i < rows.length; i++) {
    if (!stands[i]) continue;
    for (const s of rows[i][SRC]) {
      if (!stands[s] || stands[s] === stands[i]) continue;
      const key = stands[s] + ">" + stands[i];
      if (!seen.has(key)) { seen.add(key); edges.push([stands[s], stands[i]]); }
    }
  }
  return { stands, edges };
}
