#!/bin/sh
# Run the tests, or any Python, on an ARM64 processor that is not here: qemu-user executes Debian's arm64 Python with
# aarch64 wheels. In: arguments of pytest; or "python" and its arguments. `./dev arm64` calls this.
#
#   ./dev arm64 tests/jit                         tests, about 20 times slower than on the machine itself
#   ./dev arm64 python -c 'import platform; print(platform.machine())'
#
# The first run fills .venv/arm64 (0.4 GB; no root needed, nothing of the system is changed). It needs Debian, with
#   apt install qemu-user-static                  the emulator
#   apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross      optional: a C compiler for CLANG, which runs unemulated
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/../.."
python=${python:-python3}
folder=${ARM64_FOLDER:-$PWD/.venv/arm64}
debian="python3.11 libstdc++6 libgomp1"
wheels="numpy llvmlite tqdm pytest pytest-xdist hypothesis safetensors gguf"

say() { printf 'arm64: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

# -- the folder ------------------------------------------------------------------------------------------------------
# apt with state of its own: its packages, and what they depend on, are unpacked and not installed.
unpack_debian() {
    state=$folder/apt
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$folder/root"
    : >"$state/status"
    set -- -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Install-Recommends=0 \
        -o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
        -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1
    apt-get "$@" update
    # shellcheck disable=SC2086
    apt-get "$@" -y --download-only install $debian
    for package in "$state"/cache/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
    rm -r "$state"
}

unpack_wheels() {
    set -- --quiet --target "$folder/packages" --only-binary=:all: --implementation cp --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux2014_aarch64
    # shellcheck disable=SC2086
    "$python" -m pip install "$@" $wheels
    # A program that starts Python again starts the emulator: the kernel alone cannot run an arm64 file. PyTorch, the
    # reference, is this machine's own, in a process beside.
    cat >"$folder/packages/sitecustomize.py" <<'SITE'
import os
import sys

sys.executable = os.environ["ARM64_PYTHON"]
if "REMOTE_TORCH" in os.environ:
    import remote_torch
    remote_torch.install()
SITE
}

# What the emulated processor says of itself: qemu would show this machine's files. A Neoverse N1, with its caches.
describe_processor() {
    mkdir -p "$folder/root/proc"
    cat >"$folder/root/proc/cpuinfo" <<'CPU'
processor	: 0
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0c
CPU revision	: 1

CPU
    cache=$folder/root/sys/devices/system/cpu/cpu0/cache
    for line in "index0 1 Data 64K" "index1 1 Instruction 64K" "index2 2 Unified 1024K"; do
        # shellcheck disable=SC2086
        set -- $line
        mkdir -p "$cache/$1"
        echo "$2" >"$cache/$1/level"
        echo "$3" >"$cache/$1/type"
        echo "$4" >"$cache/$1/size"
    done
}

# Programs of this machine that an emulated process starts: Python in the emulator, and a compiler for the other processor.
write_programs() {
    mkdir -p "$folder/bin"
    cat >"$folder/bin/python" <<PYTHON
#!/bin/sh
export ARM64_PYTHON="$folder/bin/python" PYTHONHOME="$folder/root/usr"
export PYTHONPATH="$folder/packages\${PYTHONPATH:+:\$PYTHONPATH}" PATH="$folder/bin:\$PATH"
exec qemu-aarch64-static -cpu neoverse-n1 -L "$folder/root" "$folder/root/usr/bin/python3.11" "\$@"
PYTHON
    cat >"$folder/bin/gcc" <<'GCC'
#!/bin/sh
for word; do
    shift
    case $word in -march=native | -mcpu=native) word=-mcpu=neoverse-n1 ;; esac
    set -- "$@" "$word"
done
exec aarch64-linux-gnu-gcc "$@"
GCC
    cp "$folder/bin/gcc" "$folder/bin/cc"
    cp "$folder/bin/gcc" "$folder/bin/clang"
    chmod +x "$folder"/bin/*
}

command -v qemu-aarch64-static >/dev/null || fail "there is no qemu-aarch64-static here: apt install qemu-user-static"
command -v apt-get >/dev/null && command -v dpkg >/dev/null || fail "arm64 packages come from Debian: apt-get is missing"
if [ ! -e "$folder/.ready" ]; then
    say "filling $folder with Debian's arm64 Python and aarch64 wheels (once)"
    rm -rf "$folder"
    unpack_debian
    unpack_wheels
    describe_processor
    write_programs
    : >"$folder/.ready"                         # last: a folder that is half filled is filled again
fi

# -- the run ---------------------------------------------------------------------------------------------------------
[ $# -gt 0 ] || fail "say which tests: ./dev arm64 tests/jit; or a program: ./dev arm64 python FILE"
export PYTHONPATH="$PWD:$PWD/tests/reference${PYTHONPATH:+:$PYTHONPATH}"
if found=$("$python" -c 'import sys, torch; print(sys.executable)' 2>/dev/null); then export REMOTE_TORCH="$found"
else say "no torch in $python: the tests that it references will skip"; fi
if [ "$1" = python ]; then
    shift
    exec "$folder/bin/python" "$@"
fi
exec "$folder/bin/python" -m pytest -q -p no:cacheprovider "$@"
