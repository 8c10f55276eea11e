# One run: FILES DATA WAREHOUSES TERMINALS SECONDS SHARED_BUFFERS HUGE_PAGES SEED
. "$1/shared.sh"
. "$1/postgres.sh"
files=$1 data=$2 warehouses=$3 terminals=$4 seconds=$5 buffers=$6 huge=$7 seed=$8
cp -a --reflink=auto "$data/cluster" cluster
cd cluster
pg_start "$buffers" "$huge"
# A deadlock is not a failure: pgbench repeats the transaction.
$as pgbench -n -c "$terminals" -j 1 -T "$seconds" --random-seed="$seed" --max-tries=10 -D warehouses="$warehouses" \
    -f "$files/new-order.sql@45" -f "$files/payment.sql@43" -f "$files/order-status.sql@4" \
    -f "$files/delivery.sql@4" -f "$files/stock-level.sql@4" >pgbench.log 2>&1 ||
    fail "pgbench failed: $(tail -5 pgbench.log)"
failed=$(sed -n 's/^number of failed transactions: \([0-9]*\).*/\1/p' pgbench.log | head -1)
[ "${failed:-0}" = 0 ] || fail "$failed transactions failed: $(tail -5 pgbench.log)"
broken=$(cat "$files/consistency.sql" | pg_ask -f -)
[ -z "$broken" ] || wrong "$broken"
awk '
/^tps = / && !total { total = $3 }
/^SQL script/ { name = $0; sub(/.*\//, "", name); sub(/\.sql.*/, "", name) }
/^ - [0-9]+ transactions/ { split($0, part, "tps = "); rate[name] = part[2] + 0 }
/^ - latency average/ { print name " latency: " $5 " ms" }
END { printf "transactions: %s 1/s\ntpmC: %.1f 1/min\n", total, rate["new-order"] * 60 }' pgbench.log
