"""The worker pool's native half, as C: the text to read first. In: nothing. Out: the program and its layout.

Knows nothing of Python, buffers or kernels. One call, `glassgrad_run`, walks a command list; the other workers
sit in `glassgrad_worker`. How it works:

- `word` holds the current command's number (24 bits), its first unclaimed task and how many are unclaimed (20
  bits each). To claim a task is to change it with a compare-and-swap, which fails if the command has changed
  meanwhile: a worker that was asleep or preempted can neither run a stale task nor hold up the others.
- The caller claims tasks from the front, the others from the back. So from command to command, and from call to
  call, a core mostly finds in its own cache what it wrote there: half of the tasks each while nobody is late.
- A command is over when `done` reaches its number of tasks. The caller claims tasks like everyone else, so
  progress never depends on anybody waking up: a worker that comes late costs speed, not correctness.
- An idle worker spins, then counts itself in `sleepers`, looks once more at `word`, and waits on the bell. The
  caller changes `word`, then looks at `sleepers`. Both are sequentially consistent, so at least one sees the
  other. Whoever takes n off `sleepers` rings n times: as many rings as sleepers. The woken wake two more each.
- The caller waiting for the last tasks spins, then yields, then sleeps on a bell of its own (`waiting`).
- A serial command without a function is a check: the walk ends there if the 32-bit number at `args` is below
  `tasks`. A walk answers how many commands it left undone.

`wait`, `post` and `yield` are the system's own functions, called with enough arguments for each of them:
sem_wait(bell), dispatch_semaphore_wait(bell, for ever), WaitForSingleObject(bell, for ever); sem_post(bell),
dispatch_semaphore_signal(bell), ReleaseSemaphore(bell, 1, null); sched_yield(), SwitchToThread().
"""

from __future__ import annotations

from string import Template

# Byte offsets in the pool's memory. What is written often has a pair of cache lines (128 bytes) of its own.
OFFSETS = {
    "WORD": 0, "DONE": 128, "FUNCTION": 256, "ARGS": 264, "TASKS": 272, "SLEEPERS": 384, "WAITING": 512,
    "STOP": 640, "SPINS": 648, "WORKERS": 656, "WAIT": 664, "POST": 672, "YIELD": 680, "BELL": 688,
    "CALLER_BELL": 696, "SCRATCH": 704,
}
POOL_BYTES = 768
TASK_BITS = 20
MOST_TASKS = (1 << TASK_BITS) - 1  # more run on the caller alone

_C = Template(r"""
#include <stdint.h>

typedef void (*kernel)(void **args, int64_t task, void *scratch);
typedef int (*post)(void *bell, int64_t one, void *null);
typedef int (*wait)(void *bell, int64_t for_ever);
typedef int (*yield)(void);
struct command { kernel function; void **args; int64_t tasks, serial; };

#define FIELD(type, offset) (*(type *)((char *)pool + (offset)))
#define WORD     &FIELD(int64_t, $WORD)
#define DONE     &FIELD(int64_t, $DONE)
#define SLEEPERS &FIELD(int64_t, $SLEEPERS)
#define WAITING  &FIELD(int64_t, $WAITING)
#define STOP     &FIELD(int64_t, $STOP)
#define POST     FIELD(post, $POST)
#define WAIT     FIELD(wait, $WAIT)
#define UNCLAIMED(word) ((word) & $MOST_TASKS)
#define FIRST(word) ((word) >> $TASK_BITS & $MOST_TASKS)
#define COMMANDS(word) ((uint64_t)(word) >> 2 * $TASK_BITS)
#define SWAP(at, seen, new, won, lost) __atomic_compare_exchange_n(at, seen, new, 0, won, lost)

#if defined(__x86_64__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ volatile("isb" ::: "memory")
#endif

/* Takes up to limit sleepers off the count, and rings for each. */
static void wake(void *pool, int64_t limit) {
  int64_t seen = __atomic_load_n(SLEEPERS, __ATOMIC_SEQ_CST), count;
  do {
    if (seen <= 0) return;
    count = seen < limit ? seen : limit;
  } while (!SWAP(SLEEPERS, &seen, seen - count, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  for (int64_t i = 0; i < count; i++) POST(FIELD(void *, $BELL), 1, 0);
}

/* Takes oneself off the count of sleepers; false when someone else did, and rings. */
static int withdraw(void *pool) {
  int64_t seen = __atomic_load_n(SLEEPERS, __ATOMIC_SEQ_CST);
  do {
    if (seen <= 0) return 0;
  } while (!SWAP(SLEEPERS, &seen, seen - 1, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return 1;
}

/* Runs tasks of the current command until none is unclaimed, then reports how many it ran. */
static void work(void *pool, int64_t who) {
  int64_t count = 0, total = 0, seen = __atomic_load_n(WORD, __ATOMIC_ACQUIRE);
  while (UNCLAIMED(seen)) {   /* these three may be torn; if so, the swap fails */
    kernel function = __atomic_load_n(&FIELD(kernel, $FUNCTION), __ATOMIC_RELAXED);
    void **args = __atomic_load_n(&FIELD(void **, $ARGS), __ATOMIC_RELAXED);
    int64_t tasks = __atomic_load_n(&FIELD(int64_t, $TASKS), __ATOMIC_RELAXED);
    int64_t first = FIRST(seen), last = first + UNCLAIMED(seen) - 1;
    int64_t next = who ? seen - 1 : seen - 1 + ((int64_t)1 << $TASK_BITS);
    if (!SWAP(WORD, &seen, next, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
    function(args, who ? last : first, FIELD(void **, $SCRATCH)[who]);
    count++;
    total = tasks;
    seen = __atomic_load_n(WORD, __ATOMIC_ACQUIRE);
  }
  if (count && __atomic_add_fetch(DONE, count, __ATOMIC_SEQ_CST) == total
      && __atomic_load_n(WAITING, __ATOMIC_SEQ_CST) && __atomic_exchange_n(WAITING, 0, __ATOMIC_SEQ_CST))
    POST(FIELD(void *, $CALLER_BELL), 1, 0);
}

/* The caller's wait for tasks that others are still running. */
static void await(void *pool, int64_t tasks) {
  int64_t spins = FIELD(int64_t, $SPINS), round = 0;
  while (__atomic_load_n(DONE, __ATOMIC_ACQUIRE) != tasks) {
    if (round < spins) { round++; PAUSE(); continue; }
    if (round < spins + 1000) { round++; FIELD(yield, $YIELD)(); continue; }
    __atomic_store_n(WAITING, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(DONE, __ATOMIC_SEQ_CST) == tasks) break;
    WAIT(FIELD(void *, $CALLER_BELL), -1);   /* an interrupted or surplus wait only means another look */
  }
  if (round >= spins + 1000) __atomic_store_n(WAITING, 0, __ATOMIC_SEQ_CST);
}

/* Runs one command here; whether the walk goes on. */
static int alone(struct command *c, void *scratch) {
  if (!c->function) return *(int32_t *)c->args >= c->tasks;
  for (int64_t task = 0; task < c->tasks; task++) c->function(c->args, task, scratch);
  return 1;
}

/* Walks a command list; how many of them it did not come to. */
int64_t glassgrad_run(void *pool, struct command *c, int64_t count) {
  for (; count; c++, count--) {
    if (c->serial || c->tasks <= 1 || c->tasks > $MOST_TASKS || FIELD(int64_t, $WORKERS) <= 1) {
      if (!alone(c, FIELD(void **, $SCRATCH)[0])) break;
      continue;
    }
    __atomic_store_n(&FIELD(kernel, $FUNCTION), c->function, __ATOMIC_RELAXED);
    __atomic_store_n(&FIELD(void **, $ARGS), c->args, __ATOMIC_RELAXED);
    __atomic_store_n(&FIELD(int64_t, $TASKS), c->tasks, __ATOMIC_RELAXED);
    __atomic_store_n(DONE, 0, __ATOMIC_RELAXED);
    uint64_t number = COMMANDS(__atomic_load_n(WORD, __ATOMIC_RELAXED)) + 1;
    __atomic_store_n(WORD, (int64_t)(number << 2 * $TASK_BITS | (uint64_t)c->tasks), __ATOMIC_SEQ_CST);
    wake(pool, c->tasks - 1 < 2 ? c->tasks - 1 : 2);
    work(pool, 0);
    await(pool, c->tasks);
  }
  return count;
}

/* Walks a command list without the pool, for launches from inside a launch. */
int64_t glassgrad_inline(struct command *c, int64_t count, void *scratch) {
  while (count && alone(c, scratch)) c++, count--;
  return count;
}

/* The life of worker who, until glassgrad_stop. */
void glassgrad_worker(void *pool, int64_t who) {
  int64_t budget = FIELD(int64_t, $SPINS);
  for (;;) {
    int64_t left = UNCLAIMED(__atomic_load_n(WORD, __ATOMIC_ACQUIRE));
    if (left) {
      if (left > 1) wake(pool, 2);
      work(pool, who);
      budget = FIELD(int64_t, $SPINS);
      continue;
    }
    if (__atomic_load_n(STOP, __ATOMIC_ACQUIRE)) return;
    if (--budget > 0) { PAUSE(); continue; }
    __atomic_add_fetch(SLEEPERS, 1, __ATOMIC_SEQ_CST);
    int64_t reason = UNCLAIMED(__atomic_load_n(WORD, __ATOMIC_SEQ_CST));
    reason |= __atomic_load_n(STOP, __ATOMIC_SEQ_CST);
    if (!reason || !withdraw(pool))
      while (WAIT(FIELD(void *, $BELL), -1)) {}   /* not zero: a signal interrupted it, no ring was taken */
    budget = FIELD(int64_t, $SPINS);
  }
}

/* Sends every worker home; the caller then joins the threads. */
void glassgrad_stop(void *pool) {
  __atomic_store_n(STOP, 1, __ATOMIC_SEQ_CST);
  wake(pool, 1 << 30);
}

/* Pauses count times, to learn how long a pause takes here. */
void glassgrad_spin(int64_t count) {
  for (int64_t i = 0; i < count; i++) PAUSE();
}
""")


def c_text() -> str:
    """The pool as C, for machines with a C compiler and no llvmlite."""
    return _C.substitute(OFFSETS, MOST_TASKS=MOST_TASKS, TASK_BITS=TASK_BITS)
