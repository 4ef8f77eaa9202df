"""The worker pool's native half, as LLVM IR. In: a processor's name. Out: the program's text.

The same program as in `worker_pool_c.py`, function by function, which says how it works; a test runs both.
Written without stack slots, because it is compiled without optimization passes.
"""

from __future__ import annotations

from string import Template

from glassgrad.runtime.cpu.worker_pool_c import MOST_TASKS, OFFSETS, TASK_BITS

_IR = Template("""
declare void $PAUSE_DECLARED

; Takes up to %limit sleepers off the count, and rings for each.
define internal void @wake(ptr %pool, i64 %limit) nounwind {
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %first = load atomic i64, ptr %sleepers seq_cst, align 8
  br label %look
look:
  %seen = phi i64 [ %first, %entry ], [ %now, %take ]
  %some = icmp sgt i64 %seen, 0
  br i1 %some, label %take, label %out
take:
  %few = icmp slt i64 %seen, %limit
  %count = select i1 %few, i64 %seen, i64 %limit
  %left = sub i64 %seen, %count
  %swap = cmpxchg ptr %sleepers, i64 %seen, i64 %left seq_cst seq_cst, align 8
  %now = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %ring, label %look
ring:
  %post.at = getelementptr i8, ptr %pool, i64 $POST
  %post = load ptr, ptr %post.at, align 8
  %bell.at = getelementptr i8, ptr %pool, i64 $BELL
  %bell = load ptr, ptr %bell.at, align 8
  br label %each
each:
  %rung = phi i64 [ 0, %ring ], [ %rung.next, %each ]
  call i32 %post(ptr %bell, i64 1, ptr null)
  %rung.next = add i64 %rung, 1
  %more = icmp slt i64 %rung.next, %count
  br i1 %more, label %each, label %out
out:
  ret void
}

; Takes oneself off the count of sleepers; false when someone else did, and rings.
define internal i1 @withdraw(ptr %pool) nounwind {
entry:
  %sleepers = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %first = load atomic i64, ptr %sleepers seq_cst, align 8
  br label %look
look:
  %seen = phi i64 [ %first, %entry ], [ %now, %take ]
  %some = icmp sgt i64 %seen, 0
  br i1 %some, label %take, label %no
take:
  %left = sub i64 %seen, 1
  %swap = cmpxchg ptr %sleepers, i64 %seen, i64 %left seq_cst seq_cst, align 8
  %now = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %yes, label %look
yes:
  ret i1 true
no:
  ret i1 false
}

; Runs tasks of the current command until none is unclaimed, then reports how many it ran.
define internal void @work(ptr %pool, i64 %who) nounwind {
entry:
  %word = getelementptr i8, ptr %pool, i64 $WORD
  %done = getelementptr i8, ptr %pool, i64 $DONE
  %function.at = getelementptr i8, ptr %pool, i64 $FUNCTION
  %args.at = getelementptr i8, ptr %pool, i64 $ARGS
  %tasks.at = getelementptr i8, ptr %pool, i64 $TASKS
  %table.at = getelementptr i8, ptr %pool, i64 $SCRATCH
  %table = load ptr, ptr %table.at, align 8
  %scratch.at = getelementptr ptr, ptr %table, i64 %who
  %is.caller = icmp eq i64 %who, 0                ; claims the first task, others the last one
  %change = select i1 %is.caller, i64 $FROM_THE_FRONT, i64 -1
  %first = load atomic i64, ptr %word acquire, align 8
  br label %look
look:
  %seen = phi i64 [ %first, %entry ], [ %now, %claim ], [ %again, %run ]
  %count = phi i64 [ 0, %entry ], [ %count, %claim ], [ %count.next, %run ]
  %total = phi i64 [ 0, %entry ], [ %total, %claim ], [ %tasks, %run ]
  %left = and i64 %seen, $MOST_TASKS
  %empty = icmp eq i64 %left, 0
  br i1 %empty, label %report, label %claim
claim:                                            ; these three may be torn; if so, the swap fails
  %function = load atomic ptr, ptr %function.at monotonic, align 8
  %args = load atomic ptr, ptr %args.at monotonic, align 8
  %tasks = load atomic i64, ptr %tasks.at monotonic, align 8
  %first.high = lshr i64 %seen, $TASK_BITS
  %front = and i64 %first.high, $MOST_TASKS
  %end = add i64 %front, %left
  %back = sub i64 %end, 1
  %task = select i1 %is.caller, i64 %front, i64 %back
  %lower = add i64 %seen, %change
  %swap = cmpxchg ptr %word, i64 %seen, i64 %lower acq_rel acquire, align 8
  %now = extractvalue { i64, i1 } %swap, 0
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %look
run:
  %scratch = load ptr, ptr %scratch.at, align 8
  call void %function(ptr %args, i64 %task, ptr %scratch)
  %count.next = add i64 %count, 1
  %again = load atomic i64, ptr %word acquire, align 8
  br label %look
report:
  %any = icmp sgt i64 %count, 0
  br i1 %any, label %add, label %out
add:
  %before = atomicrmw add ptr %done, i64 %count seq_cst, align 8
  %sum = add i64 %before, %count
  %last = icmp eq i64 %sum, %total
  br i1 %last, label %finish, label %out
finish:
  %waiting = getelementptr i8, ptr %pool, i64 $WAITING
  %asleep = load atomic i64, ptr %waiting seq_cst, align 8
  %is.asleep = icmp ne i64 %asleep, 0
  br i1 %is.asleep, label %rouse, label %out
rouse:
  %taken = atomicrmw xchg ptr %waiting, i64 0 seq_cst, align 8
  %is.taken = icmp ne i64 %taken, 0
  br i1 %is.taken, label %ring, label %out
ring:
  %post.at = getelementptr i8, ptr %pool, i64 $POST
  %post = load ptr, ptr %post.at, align 8
  %bell.at = getelementptr i8, ptr %pool, i64 $CALLER_BELL
  %bell = load ptr, ptr %bell.at, align 8
  call i32 %post(ptr %bell, i64 1, ptr null)
  br label %out
out:
  ret void
}

; The caller's wait for tasks that others are still running.
define internal void @await(ptr %pool, i64 %tasks) nounwind {
entry:
  %done = getelementptr i8, ptr %pool, i64 $DONE
  %waiting = getelementptr i8, ptr %pool, i64 $WAITING
  %spins.at = getelementptr i8, ptr %pool, i64 $SPINS
  %spins = load i64, ptr %spins.at, align 8
  %yields = add i64 %spins, 1000
  br label %look
look:
  %round = phi i64 [ 0, %entry ], [ %round.next, %pause ], [ %round.next, %give ], [ %round, %sleep ]
  %now = load atomic i64, ptr %done acquire, align 8
  %over = icmp eq i64 %now, %tasks
  br i1 %over, label %leave, label %later
later:
  %round.next = add i64 %round, 1
  %spinning = icmp slt i64 %round, %spins
  br i1 %spinning, label %pause, label %patient
pause:
  call void $PAUSE
  br label %look
patient:
  %yielding = icmp slt i64 %round, %yields
  br i1 %yielding, label %give, label %doze
give:
  %yield.at = getelementptr i8, ptr %pool, i64 $YIELD
  %yield = load ptr, ptr %yield.at, align 8
  call i32 %yield()
  br label %look
doze:
  store atomic i64 1, ptr %waiting seq_cst, align 8
  %then = load atomic i64, ptr %done seq_cst, align 8
  %over.then = icmp eq i64 %then, %tasks
  br i1 %over.then, label %clear, label %sleep
sleep:                                            ; an interrupted or surplus wait only means another look
  %wait.at = getelementptr i8, ptr %pool, i64 $WAIT
  %wait = load ptr, ptr %wait.at, align 8
  %bell.at = getelementptr i8, ptr %pool, i64 $CALLER_BELL
  %bell = load ptr, ptr %bell.at, align 8
  call i32 %wait(ptr %bell, i64 -1)
  br label %look
leave:
  %slept = icmp sge i64 %round, %yields
  br i1 %slept, label %clear, label %out
clear:
  store atomic i64 0, ptr %waiting seq_cst, align 8
  br label %out
out:
  ret void
}

; Runs one command here; whether the walk goes on.
define internal i1 @alone(ptr %function, ptr %args, i64 %tasks, ptr %scratch) nounwind {
entry:
  %is.check = icmp eq ptr %function, null
  br i1 %is.check, label %check, label %launch
check:
  %number = load i32, ptr %args, align 4
  %wide = sext i32 %number to i64
  %good = icmp sge i64 %wide, %tasks
  ret i1 %good
launch:
  %some = icmp sgt i64 %tasks, 0
  br i1 %some, label %each, label %out
each:
  %task = phi i64 [ 0, %launch ], [ %task.next, %each ]
  call void %function(ptr %args, i64 %task, ptr %scratch)
  %task.next = add i64 %task, 1
  %more = icmp slt i64 %task.next, %tasks
  br i1 %more, label %each, label %out
out:
  ret i1 true
}

; Walks a command list: {function, args, tasks, serial} each. How many of them it did not come to.
define i64 @glassgrad_run(ptr %pool, ptr %commands, i64 %count) nounwind {
entry:
  %word = getelementptr i8, ptr %pool, i64 $WORD
  %done = getelementptr i8, ptr %pool, i64 $DONE
  %function.at = getelementptr i8, ptr %pool, i64 $FUNCTION
  %args.at = getelementptr i8, ptr %pool, i64 $ARGS
  %tasks.at = getelementptr i8, ptr %pool, i64 $TASKS
  %workers.at = getelementptr i8, ptr %pool, i64 $WORKERS
  %workers = load i64, ptr %workers.at, align 8
  %single = icmp sle i64 %workers, 1
  %table.at = getelementptr i8, ptr %pool, i64 $SCRATCH
  %table = load ptr, ptr %table.at, align 8
  %scratch = load ptr, ptr %table, align 8
  br label %look
look:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %fetch, label %out
fetch:
  %command = getelementptr { ptr, ptr, i64, i64 }, ptr %commands, i64 %number
  %args.of = getelementptr i8, ptr %command, i64 8
  %tasks.of = getelementptr i8, ptr %command, i64 16
  %serial.of = getelementptr i8, ptr %command, i64 24
  %function = load ptr, ptr %command, align 8
  %args = load ptr, ptr %args.of, align 8
  %tasks = load i64, ptr %tasks.of, align 8
  %serial = load i64, ptr %serial.of, align 8
  %asked = icmp ne i64 %serial, 0
  %small = icmp sle i64 %tasks, 1
  %large = icmp sgt i64 %tasks, $MOST_TASKS
  %serial.1 = or i1 %asked, %small
  %serial.2 = or i1 %serial.1, %large
  %serial.3 = or i1 %serial.2, %single
  br i1 %serial.3, label %here, label %together
here:
  %goes.on = call i1 @alone(ptr %function, ptr %args, i64 %tasks, ptr %scratch)
  br i1 %goes.on, label %next, label %out
together:
  store atomic ptr %function, ptr %function.at monotonic, align 8
  store atomic ptr %args, ptr %args.at monotonic, align 8
  store atomic i64 %tasks, ptr %tasks.at monotonic, align 8
  store atomic i64 0, ptr %done monotonic, align 8
  %old = load atomic i64, ptr %word monotonic, align 8
  %old.high = and i64 %old, -$ONE_COMMAND
  %high = add i64 %old.high, $ONE_COMMAND
  %new = or i64 %high, %tasks
  store atomic i64 %new, ptr %word seq_cst, align 8
  %spare = sub i64 %tasks, 1
  %one = icmp slt i64 %spare, 2
  %limit = select i1 %one, i64 %spare, i64 2
  call void @wake(ptr %pool, i64 %limit)
  call void @work(ptr %pool, i64 0)
  call void @await(ptr %pool, i64 %tasks)
  br label %next
next:
  %number.next = add i64 %number, 1
  br label %look
out:
  %left = sub i64 %count, %number
  ret i64 %left
}

; Walks a command list without the pool, for launches from inside a launch.
define i64 @glassgrad_inline(ptr %commands, i64 %count, ptr %scratch) nounwind {
entry:
  br label %look
look:
  %number = phi i64 [ 0, %entry ], [ %number.next, %next ]
  %more = icmp slt i64 %number, %count
  br i1 %more, label %body, label %out
body:
  %command = getelementptr { ptr, ptr, i64, i64 }, ptr %commands, i64 %number
  %args.of = getelementptr i8, ptr %command, i64 8
  %tasks.of = getelementptr i8, ptr %command, i64 16
  %function = load ptr, ptr %command, align 8
  %args = load ptr, ptr %args.of, align 8
  %tasks = load i64, ptr %tasks.of, align 8
  %goes.on = call i1 @alone(ptr %function, ptr %args, i64 %tasks, ptr %scratch)
  br i1 %goes.on, label %next, label %out
next:
  %number.next = add i64 %number, 1
  br label %look
out:
  %left = sub i64 %count, %number
  ret i64 %left
}

; The life of worker %who, until `glassgrad_stop`.
define void @glassgrad_worker(ptr %pool, i64 %who) nounwind {
entry:
  %word = getelementptr i8, ptr %pool, i64 $WORD
  %stop = getelementptr i8, ptr %pool, i64 $STOP
  %sleepers = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %spins.at = getelementptr i8, ptr %pool, i64 $SPINS
  %spins = load i64, ptr %spins.at, align 8
  %wait.at = getelementptr i8, ptr %pool, i64 $WAIT
  %wait = load ptr, ptr %wait.at, align 8
  %bell.at = getelementptr i8, ptr %pool, i64 $BELL
  %bell = load ptr, ptr %bell.at, align 8
  br label %fresh
fresh:
  br label %look
look:
  %budget = phi i64 [ %spins, %fresh ], [ %budget.next, %pause ]
  %seen = load atomic i64, ptr %word acquire, align 8
  %left = and i64 %seen, $MOST_TASKS
  %some = icmp ne i64 %left, 0
  br i1 %some, label %busy, label %idle
busy:
  %several = icmp ugt i64 %left, 1
  br i1 %several, label %others, label %start
others:
  call void @wake(ptr %pool, i64 2)
  br label %start
start:
  call void @work(ptr %pool, i64 %who)
  br label %fresh
idle:
  %stopped = load atomic i64, ptr %stop acquire, align 8
  %is.stopped = icmp ne i64 %stopped, 0
  br i1 %is.stopped, label %out, label %rest
rest:
  %budget.next = sub i64 %budget, 1
  %patient = icmp sgt i64 %budget.next, 0
  br i1 %patient, label %pause, label %sleep
pause:
  call void $PAUSE
  br label %look
sleep:
  atomicrmw add ptr %sleepers, i64 1 seq_cst, align 8
  %seen.then = load atomic i64, ptr %word seq_cst, align 8
  %stopped.then = load atomic i64, ptr %stop seq_cst, align 8
  %left.then = and i64 %seen.then, $MOST_TASKS
  %reason = or i64 %left.then, %stopped.then
  %quiet = icmp eq i64 %reason, 0
  br i1 %quiet, label %doze, label %back
back:
  %withdrawn = call i1 @withdraw(ptr %pool)
  br i1 %withdrawn, label %fresh, label %doze
doze:                                             ; not zero: a signal interrupted it, and no ring was taken
  %result = call i32 %wait(ptr %bell, i64 -1)
  %rung = icmp eq i32 %result, 0
  br i1 %rung, label %fresh, label %doze
out:
  ret void
}

; Sends every worker home; the caller then joins the threads.
define void @glassgrad_stop(ptr %pool) nounwind {
  %stop = getelementptr i8, ptr %pool, i64 $STOP
  store atomic i64 1, ptr %stop seq_cst, align 8
  call void @wake(ptr %pool, i64 1073741824)
  ret void
}

; Pauses %count times, to learn how long a pause takes here.
define void @glassgrad_spin(i64 %count) nounwind {
entry:
  br label %each
each:
  %round = phi i64 [ 0, %entry ], [ %round.next, %each ]
  call void $PAUSE
  %round.next = add i64 %round, 1
  %more = icmp slt i64 %round.next, %count
  br i1 %more, label %each, label %out
out:
  ret void
}
""")

_PAUSES = {"x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
           "aarch64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)")}


def ir_text(arch: str) -> str:
    """The pool as LLVM IR for "x86_64" or "aarch64"."""
    declared, called = _PAUSES[arch]
    return _IR.substitute(OFFSETS, MOST_TASKS=MOST_TASKS, TASK_BITS=TASK_BITS, FROM_THE_FRONT=(1 << TASK_BITS) - 1,
                          ONE_COMMAND=1 << 2 * TASK_BITS, PAUSE_DECLARED=declared, PAUSE=called)
