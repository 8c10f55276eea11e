# Functions that the scripts of the manifests share. Each script runs under sh in a directory of its own.
set -eu
umask 077

# Starts a command that must not outlive the script, even after kill -9.
tied=
if setpriv --pdeathsig KILL true 2>/dev/null; then tied="setpriv --pdeathsig KILL"; fi

# Reports a failure and exits with 1.
fail() {
    echo "$*" >&2
    exit 1
}

# Reports a wrong result and exits with 70, as pagelab's own workloads do.
wrong() {
    echo "wrong result: $*" >&2
    exit 70
}

# The time in nanoseconds.
now() { date +%s%N; }

# Seconds between two times.
seconds() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.6f\n", (to - from) / 1e9 }'; }

# Waits until a command succeeds, as long as a server runs: await PROCESS LOG COMMAND …
# The server's own messages have the reason why it ended: the last of them are printed.
await() {
    process=$1 log=$2
    shift 2
    tries=0
    until "$@" >/dev/null 2>&1; do
        kill -0 "$process" 2>/dev/null || {
            tail -n 20 "$log" >&2 || true
            fail "the server ended before it was ready; its messages are above"
        }
        tries=$((tries + 1))
        [ "$tries" -lt 6000 ] || {
            tail -n 20 "$log" >&2 || true
            fail "the server was not ready within ten minutes; its messages are above"
        }
        sleep 0.1
    done
}
