"""The source of the worker pool's native code. In: nothing. Out: the program and the layout of its memory.

Does not know Python objects, buffers or kernels. The program is written in a few statements of Python's syntax, in
which every value is a 64-bit integer; worker_pool_renderer.py writes it as LLVM IR and as C. One call, `glassgrad_run`,
runs a command list; the other workers are inside `glassgrad_worker`. How it works:

- `WORD` holds the current command's number (24 bits) and its task count (20 bits). Each worker's share of tasks is a
  contiguous range, so from command to command, and from call to call, a core mostly finds in its own cache what it
  wrote there. Its word in `SHARES` holds the command's number, the first unclaimed task of the share and the number of
  unclaimed ones (20 bits each). A worker claims its own share from the front, then steals from the back of others.
- To claim a task is to change the word of a share with a compare-and-exchange, which fails if the command has changed
  meanwhile: a worker that was asleep or preempted can neither run a stale task nor hold up the others. The first
  worker that reaches the share of a late one initializes it: a word of an earlier command means an unclaimed share.
  Command numbers wrap, and a share without tasks stays as it is: every 4 million commands, before it would seem to be
  of a later command, the caller renews all shares.
- A command is over when `DONE` reaches its number of tasks. The caller claims tasks like the other workers, so progress
  never depends on a worker waking up: one that comes late costs speed, not correctness.
- An idle worker spins, then counts itself in `SLEEPERS`, looks once more at `WORD`, and waits on the bell (a
  semaphore). The caller changes `WORD`, then looks at `SLEEPERS`. Both are sequentially consistent, so at least one
  sees the other. Who subtracts n from `SLEEPERS` posts the bell n times. Each woken worker wakes two more, while
  there are more tasks than workers awake.
- The caller, waiting for the last tasks, spins, then yields, then sleeps on its own bell (`WAITING`).
- A serial command without a function is a check: the run ends there if the 32-bit integer at `args` is below `tasks`. A
  run returns the number of commands left undone.

    load(at), store(at, x)          sequentially consistent; set(at, x) is relaxed; load32 reads a signed 32-bit number
    exchange(at, x), add(at, x)     atomic; the value before, the value after
    exchange_if(at, old, new)       atomic; the value before, which is `old` if the exchange was made
    launch(f, args, task, scratch)  call a kernel
    system(f, a, b, c)              call a function of the system with at least the arguments that it takes:
                                    wait: sem_wait(bell), dispatch_semaphore_wait(bell, for ever),
                                          WaitForSingleObject(bell, for ever)
                                    post: sem_post(bell), dispatch_semaphore_signal(bell), ReleaseSemaphore(bell, 1, 0)
                                    yield: sched_yield(), SwitchToThread()
"""

from __future__ import annotations

# Byte offsets in the pool's memory. Fields that are written often have 128 bytes (two cache lines) to themselves.
OFFSETS = {
    "WORD": 0, "DONE": 128, "FUNCTION": 256, "ARGS": 264, "SLEEPERS": 384, "WAITING": 512,
    "STOP": 640, "SPINS": 648, "WORKERS": 656, "WAIT": 664, "POST": 672, "YIELD": 680, "BELL": 688,
    "CALLER_BELL": 696, "SCRATCH": 704, "SHARES": 768,      # of every worker, `SHARE` bytes apart
}
SHARE = 64                         # a cache line, which other workers write only to steal
TASK_BITS = 20
MOST_TASKS = (1 << TASK_BITS) - 1  # a command with more runs on the caller alone
CONSTANTS = {**OFFSETS, "SHARE": SHARE, "TASK_BITS": TASK_BITS, "MOST_TASKS": MOST_TASKS,
             "ONE_COMMAND": 1 << 2 * TASK_BITS, "COMMANDS": 1 << 64 - 2 * TASK_BITS}

PROGRAM = """
def take(pool, limit):                     # take up to limit sleepers off the count; how many
    seen = load(pool + SLEEPERS)
    while seen > 0:
        count = limit
        if seen < limit:
            count = seen
        now = exchange_if(pool + SLEEPERS, seen, seen - count)
        if now == seen:
            return count
        seen = now
    return 0

def wake(pool, limit):                     # take up to limit sleepers off the count, and ring for each
    count = take(pool, limit)
    while count > 0:
        system(load(pool + POST), load(pool + BELL), 1, 0)
        count = count - 1
    return 0

def wake_two(pool, tasks):                 # or fewer, while there are more tasks than workers awake
    lacking = tasks - load(pool + WORKERS) + load(pool + SLEEPERS)
    if lacking > 2:
        lacking = 2
    if lacking > 0:
        wake(pool, lacking)
    return 0

def claim(pool, whose, seen, back):        # a task of a worker's share of the command that was seen; -1: none is left
    at = pool + SHARES + SHARE * whose
    now = load(at)
    while 1:
        age = (seen >> 2 * TASK_BITS) - (now >> 2 * TASK_BITS) & COMMANDS - 1
        share = now
        if age:
            workers = load(pool + WORKERS)
            first = ((seen & MOST_TASKS) * whose + workers - 1) // workers
            end = ((seen & MOST_TASKS) * (whose + 1) + workers - 1) // workers
            share = (seen & -ONE_COMMAND) + (first << TASK_BITS) + end - first
        left = share & MOST_TASKS
        if (left == 0) | (age >= COMMANDS >> 1):       # or there is a later command
            return -1
        task = share >> TASK_BITS & MOST_TASKS
        rest = share - 1 + (1 << TASK_BITS)
        if back:
            task = task + left - 1
            rest = share - 1
        was = exchange_if(at, now, rest)
        if was == now:
            return task
        now = was

def work(pool, who, seen):                 # run tasks until none is unclaimed, then report how many it ran
    function = load(pool + FUNCTION)       # these may be of a later command; if so, no task can be claimed
    args = load(pool + ARGS)
    workers = load(pool + WORKERS)
    scratch = load(pool + SCRATCH) + 8 * who
    whose = who
    count = 0
    asked = 0
    while asked < workers:
        task = claim(pool, whose, seen, asked)
        if task >= 0:
            launch(function, args, task, load(scratch))
            count = count + 1
        else:
            asked = asked + 1
            whose = whose + 1
            if whose == workers:
                whose = 0
    if count:
        if add(pool + DONE, count) == seen & MOST_TASKS:
            if load(pool + WAITING):
                if exchange(pool + WAITING, 0):
                    system(load(pool + POST), load(pool + CALLER_BELL), 1, 0)
    return 0

def finish(pool, tasks):                   # the caller's wait for tasks that others are still running
    spins = load(pool + SPINS)
    round = 0
    while load(pool + DONE) != tasks:
        if round < spins:
            pause()
        elif round < spins + 1000:
            system(load(pool + YIELD), 0, 0, 0)
        else:
            store(pool + WAITING, 1)
            if load(pool + DONE) != tasks: # an interrupted or surplus wait only means another look
                system(load(pool + WAIT), load(pool + CALLER_BELL), -1, 0)
        round = round + 1
    if round > spins + 1000:
        store(pool + WAITING, 0)
    return 0

def alone(command, scratch):               # run one command here; whether the run goes on
    function = load(command)
    args = load(command + 8)
    tasks = load(command + 16)
    if function == 0:
        return load32(args) >= tasks
    task = 0
    while task < tasks:
        launch(function, args, task, scratch)
        task = task + 1
    return 1

def glassgrad_alone(command, count, scratch):      # run a command list here, without a pool; as glassgrad_run
    while count:
        if alone(command, scratch) == 0:
            return count
        command = command + 32
        count = count - 1
    return 0

def renew(pool, seen):                     # before a command: all shares become those of the command before it
    whose = load(pool + WORKERS)
    while whose > 0:
        whose = whose - 1
        store(pool + SHARES + SHARE * whose, seen - ONE_COMMAND & -ONE_COMMAND)
    return 0

def glassgrad_run(pool, command, count):   # run a command list; how many commands it did not come to
    while count:
        tasks = load(command + 16)
        serial = load(command + 24) | (tasks <= 1) | (tasks > MOST_TASKS) | (load(pool + WORKERS) <= 1)
        if serial:
            if alone(command, load(load(pool + SCRATCH))) == 0:
                return count
        else:
            set(pool + FUNCTION, load(command))
            set(pool + ARGS, load(command + 8))
            set(pool + DONE, 0)
            seen = (load(pool + WORD) & -ONE_COMMAND) + ONE_COMMAND | tasks
            if (seen >> 2 * TASK_BITS & (COMMANDS >> 2) - 1) == 0:
                renew(pool, seen)
            store(pool + WORD, seen)
            wake_two(pool, tasks)
            work(pool, 0, seen)
            finish(pool, tasks)
        command = command + 32
        count = count - 1
    return 0

def glassgrad_worker(pool, who):           # the loop of worker who, until glassgrad_stop
    budget = load(pool + SPINS)
    last = 0
    while 1:
        seen = load(pool + WORD)
        if seen != last:
            last = seen
            if load(pool + DONE) < seen & MOST_TASKS:
                wake_two(pool, seen & MOST_TASKS)
                work(pool, who, seen)
            budget = load(pool + SPINS)
        elif load(pool + STOP):
            return 0
        elif budget > 1:
            budget = budget - 1
            pause()
        else:
            add(pool + SLEEPERS, 1)
            asleep = 1
            if (load(pool + WORD) != last) | load(pool + STOP):
                asleep = 1 - take(pool, 1) # itself; where another took it off, that one rings
            while asleep:                  # not zero: a signal interrupted it, and no ring was taken
                asleep = system(load(pool + WAIT), load(pool + BELL), -1, 0) != 0
            budget = load(pool + SPINS)

def glassgrad_stop(pool):                  # end every worker; the caller then joins the threads
    store(pool + STOP, 1)
    wake(pool, 1 << 30)
    return 0

def glassgrad_stamp(stamp, task, scratch): # a kernel that reads the clock: how long was it since the last one
    system(load(stamp), load(stamp + 8), load(stamp + 16), 0)
    now = load(stamp + 24) * load(stamp + 40) + load(stamp + 32)
    last = load(stamp + 48)
    taken = now - load(last)
    set(last, now)
    set(stamp + 56, taken)
    set(stamp + 64, load(stamp + 64) + taken)
    return 0

def glassgrad_spin(count):                 # pause count times, to measure how long a pause takes here
    while count > 0:
        pause()
        count = count - 1
    return 0
"""
