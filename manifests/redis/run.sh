# One run: FILES KEYS VALUE_BYTES REQUESTS CLIENTS PIPELINE SEED
. "$1/shared.sh"
keys=$2 value_bytes=$3 requests=$4 clients=$5 pipeline=$6 seed=$7

# The path of a relative socket is never too long; port 0: no network port.
$tied redis-server --port 0 --unixsocket s --unixsocketperm 700 --save "" --appendonly no \
    --disable-thp no --daemonize no --dir . --logfile server.log &
server=$!
trap 'kill -KILL $server 2>/dev/null; wait $server 2>/dev/null || true' EXIT
await $server server.log redis-cli -s s ping

# Keys as redis-benchmark requests them, in random order: the multiplier has no factor in common with their
# number.
began=$(now)
awk -v keys="$keys" -v bytes="$value_bytes" -v seed="$seed" '
function common(a, b) { while (b) { t = a % b; a = b; b = t } return a }
BEGIN {
    step = int(keys * 0.6180339887) + seed % keys
    while (common(step, keys) != 1) step++
    value = "x"
    while (length(value) < bytes) value = value value
    at = seed % keys
    for (n = 0; n < keys; n++) {
        v = substr(at "-" value, 1, bytes)
        printf "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$%d\r\n%s\r\n", at, length(v), v
        at = (at + step) % keys
    }
}' | redis-cli -s s --pipe >load.log || fail "cannot load the keys: $(tail -2 load.log)"
echo "load: $(seconds "$began" "$(now)") s"
there=$(redis-cli -s s dbsize)
[ "$there" = "$keys" ] || wrong "$there keys are there, $keys were loaded"
echo "used: $(redis-cli -s s info memory | tr -d '\r' | sed -n 's/^used_memory://p') bytes"

redis-cli -s s config resetstat >resetstat.log
redis-benchmark -s s -t get -n "$requests" -r "$keys" -c "$clients" -P "$pipeline" --csv \
    >benchmark.csv 2>benchmark.log || fail "redis-benchmark failed: $(tail -2 benchmark.log benchmark.csv)"
found=$(redis-cli -s s info stats | tr -d '\r' | sed -n 's/^keyspace_hits://p')
missed=$(redis-cli -s s info stats | tr -d '\r' | sed -n 's/^keyspace_misses://p')
[ "$missed" = 0 ] && [ "$found" -ge "$requests" ] || wrong "$found of $requests keys found, $missed not"
tail -1 benchmark.csv | tr -d '"' | awk -F, '{ printf "get rate: %s 1/s\np99: %s ms\n", $2, $7 }'
