# One run: FILES DATA SCRIPT CLIENTS SECONDS SHARED_BUFFERS HUGE_PAGES SEED
. "$1/shared.sh"
. "$1/postgres.sh"
data=$2 script=$3 clients=$4 seconds=$5 buffers=$6 huge=$7 seed=$8
cp -a --reflink=auto "$data/cluster" cluster
cd cluster
pg_start "$buffers" "$huge"
$as pgbench -n -b "$script" -c "$clients" -j 1 -T "$seconds" --random-seed="$seed" 2>&1 ||
    fail "pgbench failed"
sums=$(pg_ask -F ' ' -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts),
    (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(tbalance) FROM pgbench_tellers),
    (SELECT coalesce(sum(delta), 0) FROM pgbench_history)')
echo "sums: $sums"
set -- $sums
[ "$1" = "$4" ] || wrong "accounts and history differ: $sums"
if [ "$script" = tpcb-like ]; then
    [ "$2" = "$4" ] && [ "$3" = "$4" ] || wrong "branches or tellers and history differ: $sums"
fi
