"""Decide which nodes get memory. In: the sinks' graph. Out: {node: reason}. Does not know loops or devices.

All other nodes are computed where they are used. One pass over the graph tracks what is inlined in each node: its cost,
and the reductions inside, with the axes that they keep (`Inlined`). A node gets memory when one of the rules below
applies; its words are kept as the reason, for DEBUG and the visualizer. (a @ b).relu().sum(), node by node:

    SUM of a * b     a contraction; inlined, for now
    MAX with 0       elementwise: the contraction is inlined in it
    SUM of all       a reduction over a contraction: `cut` gives memory to the MAX, and this SUM reads it
    RESHAPE to ()    an output: gets memory

    rule in            words                                                   example
    walk               an output                                               what is realized
                       softmax(scores) times values, in one pass: ...          (q @ k.T).softmax() @ v, of 128 keys
                       a softmax's gradient, in one pass: ...                  that of q, in the same graph
                       a number of each row, for the passes that ...           its maximum, where the gradient is there
    visit              read by index: any row, any number of times             (t * 2)[rows]
                       read by each step of a recurrence                       the inputs of nn.LSTM, for all steps
                       a result of every step of a recurrence                  the states of nn.LSTM
    elementwise        its rows differ from those it is combined with          t.sum(0)[None, :] * t.sum(1)[:, None]
                       a sum of products shares its kernel with no other ...   a @ b + c @ d
                       few rows and long: ...                                  t.sum(1) + t.max(1), on a GPU
                       with its reader it reads more buffers than ...          a sum of 40 tensors, on METAL
    movement           a reduction under pad would be computed again           t.sum(1).pad(((1, 1),))
                       a sum of products that its reader repeats               (a @ b)[:, :, None] * c
                       costly, and repeated many times                         t.sin()[:, :, None] * c
    under_window       read by every tap of a window                           x.relu().conv2d(w, padding=1)
    reduction          a factor of a sum of products, with a reduction inside  x.softmax() @ v
                       a sum of products under another reduction               (a @ b).sum()
                       its rows are reduced in turn                            t.sum(1).max()
    separate_shared    used by several kernels, and costly to compute again    t.exp(), in t.exp().sum(0) and .sum(1)
"""

from __future__ import annotations

from typing import NamedTuple

from glassgrad.compiler.graph import UOp, ops as o, toposort, upper_bound
from glassgrad.compiler.graph.axis_dependence import AxisSet, carried, nontrivial
from glassgrad.compiler.schedule.attention_backward import SCORES_AGAIN, Passes, find
from glassgrad.compiler.schedule.inlined_values import (CONSTANT, CPU_LIMITS, FEWER, LEAVES, NOTHING, SEEN_THROUGH,
                                                        FusionLimits, Inlined, InlinedValues, widens)
from glassgrad.compiler.schedule.online_softmax import ONE_PASS, StoresScores, WeightedSum

# costs, in vector instructions per element
RANDOM_COST = 60       # ten rounds of Philox: a product and five others each, as counted in the AVX-512 kernel of rand
GATHER_COST = 4        # bringing an index into range and computing an address, besides its loads
COUNTING_COST = 2      # n times a constant, instead of a running sum of it
REDUCTION_COST = 2     # combining an element with the result so far, and the loop's step
CONVERSION = 4         # converting an element to another type
MOST_COUNTED = 1 << 20     # costs and inputs are not added up beyond this: each y = x + x doubles them

# limits
REPEATED = 12          # cost from which a value repeated by a view is stored, not recomputed,
MANY_REPEATS = 4       # if it is repeated at least this many times: a few repeats cost less than memory
TAPS_COST = 8          # cost in all taps of a window that read an element, above which storing it costs less
MANY_INPUTS = 3        # a value whose recomputation takes this many loads or more is stored
LARGEST = 1000         # operations in one kernel: beyond this, compile time grows faster than more fusion saves
DEEPEST = 8            # chained reductions in one kernel: each recomputes all those before it
OTHER_BUFFERS = 3      # arguments of a kernel besides its inputs: its result, partial sums, rows of its groups

# reasons that several rules or passes name
OF_EACH_ROW = "a number of each row, for the passes that compute the scores again"
IN_PARTS = "few rows and long: each reduction is cut into parts, in a kernel of its own"
LONG_ENOUGH = f"a kernel of {LARGEST} operations is long enough"
DEEP_ENOUGH = f"a kernel of {DEEPEST} reductions, each of what the one before it left, is deep enough"
MANY_BUFFERS = "with its reader it reads more buffers than a kernel can be given"


def scanned_constant(node: UOp) -> UOp | None:
    """The constant that a SCAN adds up, or None. Element i is then (i + 1) times the constant, without a loop."""
    if node.op is not o.SCAN or node.arg.combine is not o.ADD or node.dtype.kind == "b":
        return None
    source = node.src[0].below((o.RESHAPE, o.EXPAND))
    return source if source.op is o.CONST else None


class Stored(NamedTuple):
    """The nodes that get memory."""
    reasons: dict[UOp, str]        # node -> reason, sources before users
    stored_by: dict[UOp, UOp]      # node -> the node whose kernel stores it too


def fuse(sinks: list[UOp], device: str = "", stores_scores: StoresScores | None = None,
         limits: FusionLimits = CPU_LIMITS) -> Stored:
    """Decide which nodes get memory, under the limits of the device.

    The first pass may find only late that several kernels need a mean or a maximum, when its earlier readers already
    got memory because of the reduction inside them. The second pass stores such values from the start.
    """
    order = toposort(sinks)
    plan = _Plan(order, limits)
    has_softmax = any(n.op is o.EXP2 for n in order)
    plan.one_pass(find(order, plan.varies, plan.readers, set(sinks), device, stores_scores, limits)
                  if has_softmax else Passes())
    plan.walk(order, set(sinks))
    if plan.small_reductions:
        plan.start_again()
        plan.walk(order, set(sinks))
    stored = {node: plan.reasons[node] for node in order if node in plan.reasons and
              (node.op is not o.SCATTER or node in sinks or not plan.is_stored_by_reader(node))}
    return Stored(stored, plan.stored_by_others() if plan.stored_by else {})


class _Plan(InlinedValues):
    """The rules: for each kind of node, what becomes of the values inlined in its sources."""

    def one_pass(self, passes: Passes) -> None:
        """Record which sums are computed in one pass, and why others are not."""
        chains: list[WeightedSum] = [*passes.softmaxes, *passes.factors]
        self.totals = {chain.total: chain for chain in chains}
        self.inside = {node for chain in chains for node in chain.inside}       # computed again in each chain
        self.chain_results = {chain.result: ONE_PASS for chain in passes.softmaxes} | \
            {chain.result: SCORES_AGAIN for chain in passes.factors}
        self.read_again: dict[UOp, list[UOp]] = {}  # contraction inside a chain -> its factors that every block reads
        for chain in chains:
            for p, factor in zip(chain.products, chain.keys):
                self.read_again.setdefault(p, []).append(factor)
        self.stored_by, self.why_not_one_pass = passes.stored_by, passes.why_not_one_pass
        self.together = passes.together                  # result -> the result whose kernel computes it too

    def walk(self, order: list[UOp], wanted: set[UOp]) -> None:
        """Apply the rules to every node, sources first; `wanted` are the outputs."""
        self.wanted = wanted
        for node in order:
            self.visit(node)
            if node.op not in LEAVES:
                if node in wanted:
                    self.store(node, "an output")
                elif node in self.chain_results:
                    self.store(node, self.chain_results[node])
                elif node in self.stored_by:
                    self.store(node, OF_EACH_ROW)
                elif node in self.stored_at_once and self.inlined[node].kept_axes is not None:
                    self.store(node, self.stored_at_once[node])
        self.separate_shared(order)

    def stored_by_others(self) -> dict[UOp, UOp]:
        """Map stored nodes to the node whose kernel stores them too; both are nodes with memory, below views."""
        def memory(node: UOp) -> UOp:
            while node not in self.reasons:
                node = node.src[0]
            return node

        return {memory(node): memory(main) for node, main in {**self.stored_by, **self.together}.items()}

    def is_stored_by_reader(self, node: UOp) -> bool:
        """Whether a node's only reader, perhaps through reshapes, is a CONTIGUOUS: then both are the same memory."""
        while len(self.readers.get(node, ())) == 1:
            [node] = self.readers[node]
            if node.op is not o.RESHAPE or node in self.reasons:
                break
        return node.op is o.CONTIGUOUS and node in self.reasons

    # -- for each kind of node, what becomes of the values inlined in its sources ----------------------------
    def visit(self, node: UOp) -> None:
        """Record what is inlined in a node, by its kind, and give memory to sources that it cannot compute inline."""
        if node in self.inside or node in self.totals:
            self.inlined[node] = self.in_one_pass(node)
        elif node.op in LEAVES:
            self.inlined[node] = CONSTANT if node.op in (o.CONST, o.SCALAR) else NOTHING
        elif node.op in o.MOVEMENT:
            self.inlined[node] = self.movement(node)
        elif node.op in o.REDUCE:
            self.inlined[node] = self.reduction(node)
        elif node.op in o.ELEMENTWISE:
            self.inlined[node] = self.elementwise(node)
        elif node.op is o.DETACH:
            self.inlined[node] = self.inlined[node.src[0]]
        elif node.op in (o.IOTA, o.LENGTH):
            self.inlined[node] = CONSTANT
        elif node.op is o.RANDOM:
            self.inlined[node] = Inlined(RANDOM_COST, 0, node.size)
        elif scanned_constant(node) is not None:
            self.inlined[node] = Inlined(COUNTING_COST, 0, node.size)
        elif node.op is o.GATHER:
            self.inlined[node] = self.gather(node)
        elif node.op is o.RECURRENCE:
            self.inlined[node] = self.recurrence(node)
        else:
            self.in_memory(node)

    def gather(self, node: UOp) -> Inlined:
        """A GATHER inlines its index; the rows get memory."""
        rows, where = node.src
        self.store_computed(rows, "read by index: any row, any number of times")
        if self.inlined[where].kept_axes is not None:
            self.store_computed(where, "an index with a reduction inside")
        return Inlined(GATHER_COST + self.inlined[where].cost, 2, node.size)

    def in_memory(self, node: UOp) -> None:
        """CONTIGUOUS, COPY, SCATTER and SCAN write memory, and inline what they read if their loops fit it."""
        for s in node.src:
            if node.op is o.COPY and s.op is not o.PARAM:      # a view is not inlined: a copy moves whole memory
                self.reasons.setdefault(s, "read by copy")
                self.inlined[s] = NOTHING
            elif node.op not in (o.COPY, o.CONTIGUOUS) and self.inlined[s].kept_axes is not None:
                self.store_computed(s, f"read by {node.op.name.lower()}")
        self.inlined[node] = NOTHING
        if node.op is not o.CONTIGUOUS or node.src[0].op not in LEAVES:
            reasons = {o.CONTIGUOUS: "an output" if node in self.wanted else "contiguous() asks for memory",
                       o.COPY: "copied to another device"}
            self.store(node, reasons.get(node.op, f"{node.op.name.lower()} writes memory"))

    def recurrence(self, node: UOp) -> Inlined:
        """A RECURRENCE: its sources and results get memory, since each step reads and writes memory."""
        for s in node.src:
            below = s.below((o.RESHAPE,))
            if s.op is o.IOTA and self.limits.in_one_kernel(node):             # the number of the step
                continue
            if below.op is not o.PARAM and below not in self.reasons:
                self.reasons[s] = "read by each step of a recurrence"
                self.inlined[s] = NOTHING
        self.reasons.setdefault(node, "a result of every step of a recurrence")
        return NOTHING

    def in_one_pass(self, node: UOp) -> Inlined:
        """A node of softmax(scores) times values, or of its gradient, which is one kernel. Other reductions that it
        reads get memory, and so do values that every block of rows would recompute."""
        chain = self.totals.get(node)
        for s in node.src:
            if s not in self.inside and chain is None and self.inlined[s].kept_axes is not None:
                self.cut(s, "read by each block of a softmax's scores")
        for again in [chain.values] if chain is not None else self.read_again.get(node, ()):
            if self.inlined[again].cost > CONVERSION:
                self.store_computed(again, "read by each block of a softmax's rows")
        if chain is not None or node in self.read_again:
            found = self.reduction(node)
            return found if chain is not None else Inlined(found.cost, found.inputs, found.elements)
        return Inlined(node.op.cost, 0, node.size)

    def elementwise(self, node: UOp) -> Inlined:
        """An elementwise node inlines what its sources inline, if their reductions fit one kernel."""
        self.read_fewer_buffers(node)
        kept_axes: AxisSet | None = None
        contraction = False
        only: UOp | None = None
        inner = [s for s in node.src if self.inlined[s].kept_axes is not None]
        for s in sorted(inner, key=self.weight, reverse=True) if len(inner) > 1 else inner:   # lightest: stored
            inside = self.inlined[s]
            if kept_axes is None:
                kept_axes, contraction, only = inside.kept_axes, inside.contraction, inside.only_reduction
            elif inside.kept_axes != kept_axes:
                self.cut(s, "its rows differ from those it is combined with")
            elif inside.only_reduction is None or inside.only_reduction is not only:
                if inside.contraction or contraction:
                    self.cut(s, "a sum of products shares its kernel with no other reduction")
                elif self.in_parts(s):
                    self.cut(s, IN_PARTS)
                else:
                    only = None
        distinct = set(node.src)
        cost = min(node.op.cost + sum(self.inlined[s].cost for s in distinct), MOST_COUNTED)
        found = Inlined(cost, min(sum(self.inlined[s].inputs for s in distinct), MOST_COUNTED),
                        max([node.size] + [self.inlined[s].elements for s in node.src]), kept_axes, contraction, only,
                        max([self.inlined[s].depth for s in inner], default=0))
        if cost > LARGEST:
            self.inlined[node] = found
            if self.cost_of_views(node) > LARGEST:
                self.store(node, LONG_ENOUGH)
                return NOTHING
            found = found._replace(cost=self.exact_cost(node))
        return found

    def read_fewer_buffers(self, node: UOp) -> None:
        """Give memory to sources of a node, those that read most buffers first, until its kernel reads few enough."""
        def read(node: UOp) -> int:
            inside = toposort([node], lambda n: () if n in self.reasons else n.src)
            return sum(n in self.reasons or n.op in (o.BUFFER, o.PARAM) for n in inside)

        most = max(self.limits.buffers - OTHER_BUFFERS, len(node.src))
        while most < LARGEST and read(node) > most:
            self.store(max(node.src, key=read), MANY_BUFFERS)

    def movement(self, node: UOp) -> Inlined:
        """A view inlines what its source inlines, unless the view would make it computed several times."""
        source = node.src[0]
        inside = self.inlined[source]
        overlaps = node.op in (o.WINDOW, o.UNWINDOW) and self._reads(node) > 1       # not for x[::2]
        repeats = overlaps or (node.op is o.EXPAND and node.size > source.size)
        if inside.kept_axes is not None and (overlaps or node.op in (o.PAD, o.UNWINDOW)):
            self.cut(source, f"a reduction under {node.op.name.lower()} would be computed again")
            inside = self.inlined[source]
        if inside.kept_axes is not None:
            if node.op is o.EXPAND and inside.contraction and node.size > source.size:
                self.store(source, "a sum of products that its reader repeats")
                return NOTHING
            if node.op is o.EXPAND and not inside.contraction and node.size >= FEWER * source.size \
                    and self.in_parts(source):
                self.store(source, IN_PARTS)
                return NOTHING
            kept_axes = carried(node, inside.kept_axes, exact=True)
            if kept_axes is None:
                self.store(source, "a reshape mixes the rows of its reduction with the rest")
                return NOTHING
            return inside._replace(kept_axes=kept_axes)
        if overlaps:
            inside = self.under_window(node)
        if repeats and inside.cost >= REPEATED and node.size >= MANY_REPEATS * source.size and \
                not self.feeds_contraction(node) and not self.chosen_by_position(node):
            self.store(source, "costly, and repeated many times")
            return NOTHING
        if node.op is o.EXPAND and node.size >= FEWER * source.size:
            along = max(nontrivial(node.shape))      # repeated along the last axis: computed once for all of it
            return inside._replace(inputs=0, cost=inside.cost if upper_bound(source.shape[along]) > 1 else 0)
        return inside

    def under_window(self, node: UOp) -> Inlined:
        """The source of a WINDOW: store what is costly there, since each tap would recompute it, and return what is
        inlined then. If the source is a convolution's padded image, the image is stored without its padding."""
        source = node.src[0]
        image = source
        while image.op in SEEN_THROUGH and image not in self.reasons:
            image = image.src[0]
        if image.op is o.PAD and image not in self.reasons and self.feeds_contraction(node):
            value = image.src[0]
            while widens(value) or value.op in (o.RESHAPE, o.PERMUTE):
                value = value.src[0]                     # readers convert it: matrix units read the smaller type
            if self.inlined[value].cost > 0:
                self.store(value, "read by every tap of a window")
            return NOTHING
        inside = self.inlined[source]
        if inside.cost * self._reads(node) > TAPS_COST:
            padded = self._image(source) if self.limits.pads_as_read else None
            self.store(padded or source, f"each element is read {self._reads(node)} times and costs {inside.cost}")
            inside = self.inlined[source] = NOTHING if padded is None else NOTHING._replace(cost=source.op.cost)
        return inside

    def _image(self, node: UOp) -> UOp | None:
        """The value in pad(value) or where(inside, pad(value), constant); None for others, or if it costs nothing."""
        if node.op is o.WHERE and all(self.inlined[s].inputs == 0 for s in (node.src[0], node.src[2])):
            node = node.src[1]
        return node.src[0] if node.op is o.PAD and self.inlined[node.src[0]].cost > 0 else None

    def _reads(self, node: UOp) -> int:
        if node.op is o.WINDOW:
            return max(1, -(-node.arg.size // node.arg.stride))
        return max(1, upper_bound(node.shape[-1]) // node.arg.stride)

    def reduction(self, node: UOp) -> Inlined:
        """A reduction inlines what its source inlines, after reductions below that do not fit its loops got memory."""
        source = node.src[0]
        inside = self.inlined[source]
        axes = frozenset(node.arg.axes)
        contraction = self.is_contraction(node)
        if contraction:
            for factor in source.below((o.CAST,)).src:
                if self.inlined[factor].kept_axes is not None:
                    why = self.why_not_one_pass.get(node)
                    self.store(factor, "a factor of a sum of products, with a reduction inside" +
                               (f"; not in one pass: {why}" if why else ""))
        elif inside.kept_axes is not None:
            if inside.contraction:
                self.cut(source, "a sum of products under another reduction")
            elif self.iterations(source, axes) > self.limits.small and axes & inside.kept_axes:
                self.cut(source, "its rows are reduced in turn")
            elif not axes & inside.kept_axes and nontrivial(source.shape) - axes - inside.kept_axes:
                small_values, reductions, between = self.reductions_under(source)
                self.store_under(small_values + reductions, between, "computed for fewer axes than its reader has")
        if self.inlined[source].depth >= DEEPEST:
            self.store(source, DEEP_ENOUGH)
        inside = self.inlined[source]
        return Inlined(inside.cost + REDUCTION_COST, inside.inputs, max(source.size, self.iterations(source, axes)),
                       nontrivial(node.shape), contraction, node if inside.kept_axes is None else None,
                       inside.depth + 1)

    def cut(self, node: UOp, reason: str) -> None:
        """Give memory to the reductions inlined in a node, storing as little as possible: small values that the node
        broadcasts, and for a reduction as large as the node, the first value above it with several readers. Every
        reader recomputes what is in between; where that is costly, or nothing is shared, the node itself gets memory.

            x = a @ b;  y = x.relu();  y.sum()        cut(y)  ->  y gets memory
            and x.sum(0) besides                      cut(y)  ->  x gets memory, relu is computed by its reader
        """
        small_values, reductions, between = self.reductions_under(node)
        shared = [self.first_shared(n, between) for n in reductions]
        if node in shared or len(shared) > 1 or sum(n.op.cost for n in between) >= self.limits.costly:
            self.store(node, reason)
        else:
            self.store_under(small_values + shared, between, reason)

    def store_under(self, chosen: list[UOp], between: set[UOp], reason: str) -> None:
        """Give memory to the chosen nodes, and apply the rules again to the nodes between them and the reader."""
        for n in chosen:
            self.store(n, reason)
        for n in sorted(between, key=self.number.__getitem__):
            if n not in self.reasons:
                self.visit(n)

    # -- values that several kernels would compute -----------------------------------------------------------
    def separate_shared(self, order: list[UOp]) -> None:
        """Store values whose users are in different kernels, if it pays; decided for users before sources."""
        owner: dict[UOp, UOp | None] = {}      # the one stored node for which a node is computed; None: several
        for node in reversed(order):
            readers = {owner.get(r) if r not in self.reasons else r for r in self.readers.get(node, [])}
            one = next(iter(readers)) if len(readers) == 1 else None
            if node in self.reasons:
                owner[node] = node
            elif (len(readers) > 1 or None in readers) and node.op not in LEAVES and node not in self.inside and \
                    self._worth_sharing(node):
                self.mark_stored(node, "used by several kernels, and costly to compute again")
                owner[node] = node
            else:
                owner[node] = one

    def _worth_sharing(self, node: UOp) -> bool:
        """Whether to store a value that several kernels read; otherwise each computes it."""
        inside = self.inlined[node]
        if node.op in o.MOVEMENT or node.op is o.DETACH or widens(node):
            return False                        # decide for its source, which comes next and is not larger
        if self.limits.stores_factors and node.dtype.itemsize == 2 and self.is_factor(node):
            return True                         # a contraction would store it anyway, for itself alone
        if inside.kept_axes is not None and self.limits.costly_with_rows and self.memory_read(node) < MANY_INPUTS:
            small_values, reductions, between = self.reductions_under(node)
            shared = [self.first_shared(n, between) for n in reductions]
            cost = sum(n.op.cost for n in between)
            if node not in shared and len(shared) <= 1 and cost < self.limits.costly_with_rows:
                self.small_reductions.update(dict.fromkeys(small_values, "used by several kernels, and few"))
                return False                    # these are stored instead; every kernel recomputes the rest
        if inside.kept_axes is None and self.limits.costly_with_rows:
            return self.exact_cost(node) >= self.limits.costly or self.memory_read(node) >= MANY_INPUTS
        return inside.kept_axes is not None or inside.cost >= self.limits.costly or \
            inside.inputs >= MANY_INPUTS and inside.cost > 0

