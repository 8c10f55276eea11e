# A private PostgreSQL server: no network port, a socket in its directory, removed completely afterwards.

bin=$(dirname "$(command -v postgres)")
# Debian's wrappers in /usr/bin look for clusters; these are the programs themselves.
PATH=$bin:$PATH
server=
# The socket is in the server's directory, which is also the clients' working directory; a path through it is
# never too long for a socket.
PGHOST=/proc/self/cwd PGUSER=bench PGDATABASE=bench PGCLIENTENCODING=UTF8
export PGHOST PGUSER PGDATABASE PGCLIENTENCODING

# PostgreSQL does not run as root. Another user cannot enter root's directories without this one capability.
as=$tied
if [ "$(id -u)" = 0 ]; then
    user=nobody
    if id postgres >/dev/null 2>&1; then user=postgres; fi
    group=$(id -gn "$user")
    ids="--reuid=$user --regid=$group --clear-groups"
    caps="--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
    setpriv $ids $caps true || fail "PostgreSQL refuses root, and setpriv cannot become $user here"
    as="setpriv $ids $caps --pdeathsig KILL"
fi
# In a private IPC namespace the server's System V segment is removed with it, however it exits.
alone=
if unshare --ipc true 2>/dev/null; then alone="unshare --ipc"; fi

# Creates a directory for the server: DIRECTORY
pg_own() {
    mkdir -p "$1"
    chmod 700 "$1"
    if [ "$(id -u)" = 0 ]; then chown "$user:$group" "$1"; fi
}

# A new cluster in this directory, with an empty database: data lost in a crash is created again.
pg_create() {
    $as initdb -D . -A peer -U bench --no-sync -E UTF8 --locale=C >../initdb.log 2>&1 || {
        cat ../initdb.log >&2
        fail "initdb failed"
    }
    rm ../initdb.log
    # The user of the system need not have the name of the role.
    echo "local all all peer map=all" >pg_hba.conf
    echo "all /^.*\$ bench" >pg_ident.conf
}

# The server's settings that decide how much shared memory it maps: SHARED_BUFFERS_BYTES HUGE_PAGES
pg_memory() { echo "-c shared_buffers=$(($1 / 8192)) -c max_connections=200 -c huge_pages=$2"; }

# Checks that the hugetlb pool has the pages that the server will map, if it can tell their number (15 and
# later): it would end with "Cannot allocate memory", and not say how many pages are missing.
pg_check_pool() {
    needed=$($as postgres -D . $(pg_memory "$1" on) -C shared_memory_size_in_huge_pages 2>/dev/null) || return 0
    [ "$needed" -gt 0 ] 2>/dev/null || return 0
    overcommit=$(cat /proc/sys/vm/nr_overcommit_hugepages 2>/dev/null || echo 0)
    # Reserved pages are promised to others; surplus pages up to the overcommit limit are allocated on demand.
    missing=$(awk -v needed="$needed" -v overcommit="$overcommit" '
        { of[$1] = $2 }
        END {
            surplus = overcommit - of["HugePages_Surp:"]
            free = of["HugePages_Free:"] - of["HugePages_Rsvd:"]
            if (surplus > 0) free += surplus
            if (free >= needed) exit
            printf "it needs %d huge pages of %d kB, and the hugetlb pool has %d free\n", needed,
                of["Hugepagesize:"], free
            pool = of["HugePages_Total:"] - of["HugePages_Surp:"] + needed - free
            printf "hint: enlarge the pool: sysctl vm.nr_hugepages=%d (`pagelab can %d` predicts whether memory has them)\n", pool, needed
        }' /proc/meminfo)
    [ -z "$missing" ] || fail "cannot start PostgreSQL with huge_pages = on: $missing"
}

# Starts the server on the cluster in this directory: SHARED_BUFFERS_BYTES HUGE_PAGES
pg_start() {
    [ "$2" = off ] || pg_check_pool "$1"
    $alone $as postgres -D . -k . -c listen_addresses= $(pg_memory "$1" "$2") \
        -c dynamic_shared_memory_type=mmap -c fsync=off -c synchronous_commit=off \
        -c full_page_writes=off -c max_wal_size=4GB -c checkpoint_timeout=1h -c autovacuum=off -c jit=off \
        -c logging_collector=off -c log_min_messages=warning >../server.log 2>&1 &
    server=$!
    trap pg_end EXIT
    await "$server" ../server.log $as pg_isready -d postgres
}

# Stops it so that the cluster is complete on disk.
pg_stop() {
    kill -INT "$server"
    wait "$server" || fail "the server did not end well: $(tail -3 ../server.log)"
    server=
    rm -f ../server.log
}

# Stops it at once: its data are no longer needed.
pg_end() {
    if [ -n "$server" ]; then
        kill -QUIT "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
}

# Prints the result of a query, one value per line.
pg_ask() { $as psql -X -q -A -t -v ON_ERROR_STOP=1 "$@"; }
