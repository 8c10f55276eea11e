# Creates the database: FILES SCALE
. "$1/shared.sh"
. "$1/postgres.sh"
scale=$2
pg_own cluster
cd cluster
pg_create
pg_start 134217728 off
$as createdb -T template0 bench
$as pgbench -i -q -s "$scale" >pgbench.log 2>&1 || fail "pgbench -i failed: $(tail -2 pgbench.log)"
rm pgbench.log
[ "$(pg_ask -c 'SELECT count(*) FROM pgbench_accounts')" = "${scale}00000" ] || fail "accounts are missing"
pg_stop
