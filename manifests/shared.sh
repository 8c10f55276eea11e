# What the scripts of the manifests share. They are run by sh in a folder of their own.
set -eu
umask 077

# Begins the command of whatever must not outlive the script, also after kill -9.
tied=
if setpriv --pdeathsig KILL true 2>/dev/null; then tied="setpriv --pdeathsig KILL"; fi

# It could not be done.
fail() {
    echo "$*" >&2
    exit 1
}

# A check found a wrong result: the exit code that pagelab itself has for it.
wrong() {
    echo "wrong result: $*" >&2
    exit 70
}

# A moment in nanoseconds.
now() { date +%s%N; }

# Seconds between two moments.
seconds() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.6f\n", (to - from) / 1e9 }'; }

# Waits until a command succeeds, while a process lives: until PROCESS COMMAND …
await() {
    process=$1
    shift
    tries=0
    until "$@" >/dev/null 2>&1; do
        kill -0 "$process" 2>/dev/null || fail "the server ended while it was waited for"
        tries=$((tries + 1))
        [ "$tries" -lt 6000 ] || fail "the server was not ready within ten minutes"
        sleep 0.1
    done
}
